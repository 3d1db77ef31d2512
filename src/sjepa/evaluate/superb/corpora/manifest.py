"""Corpora listed in a `manifest.jsonl`: acted emotions and spoken drink orders."""

from pathlib import Path
from typing import Any

import numpy as np

from sjepa.data.layouts import Item
from sjepa.data.layouts.manifest import NAME, read
from sjepa.data.storage import is_url
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, report_unlabelled, require_audio, split_speakers


def read_manifest(root: Path, label: str) -> list[tuple[Item, Any]]:
    """Read `manifest.jsonl`: items that are whole files, with the value of one label."""
    file = root / NAME
    if not file.is_file():
        raise UserError(f"there is no {file}: one JSON object per utterance")
    found = []
    for item, line in read(str(file)):
        if isinstance(item, str):
            raise UserError(item)
        if item.offset or item.place.size or is_url(item.place.path):
            raise UserError(f"{file}: {item.id} is not a separate file, which this task needs")
        if label not in line:
            raise UserError(f"{file}: {item.id} has no {label}")
        found.append((item, line[label]))
    paths = [Path(item.place.path) for item, _ in found]
    require_audio(paths, str(file))
    report_unlabelled(root, paths)
    return found


def read_ravdess(root: Path) -> list[Fold]:
    """Read RAVDESS speech, eight acted emotions, in five folds by actor. The fold after the test fold is dev."""
    rows = read_manifest(root, "emotion")
    for item, emotion in rows:
        if not isinstance(emotion, str) or not emotion:
            raise UserError(f"{root / NAME}: {item.id} has the emotion {emotion!r}, which is not a name")
    utterances = [Utterance(item.id, Path(item.place.path), (emotion,), item.speaker) for item, emotion in rows]
    groups = split_speakers(utterances, (0.2,) * 5, seed=0, what="RAVDESS")
    folds = []
    for index, test in enumerate(groups):
        dev = (index + 1) % 5
        train = [u for other, group in enumerate(groups) if other not in (index, dev) for u in group]
        folds.append(Fold(f"actors {index + 1} of 5", train, groups[dev], test))
    return folds


def read_coffee(root: Path) -> list[Fold]:
    """Read spoken drink orders with optional slots. Speakers are unknown, so the split is random."""
    rows = read_manifest(root, "slots")
    for item, slots in rows:
        if not isinstance(slots, dict) or not all(isinstance(value, str) for value in slots.values()):
            raise UserError(f"{root / NAME}: {item.id} has the slots {slots!r}, which are not names and their values")
    kinds = sorted({kind for _, slots in rows for kind in slots})
    utterances = [
        Utterance(item.id, Path(item.place.path), tuple(slots.get(kind, "").strip() for kind in kinds))
        for item, slots in rows
    ]
    order = np.random.default_rng(0).permutation(len(utterances))
    train, dev, test = np.split(order, [int(0.7 * len(order)), int(0.8 * len(order))])
    return [Fold("coffee orders", *([utterances[i] for i in sorted(part)] for part in (train, dev, test)))]
