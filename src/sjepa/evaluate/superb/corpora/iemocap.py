"""IEMOCAP: four emotions in five sessions."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, find_folder, require_audio
from sjepa.fields import TABLE, TEXT, list_of, require
from sjepa.files import read_json
from sjepa.progress import say

EMOTIONS = {"neu": "neutral", "hap": "happy", "exc": "happy", "ang": "angry", "sad": "sad"}
TRAIN_SHARE = 0.8


def read_iemocap(root: Path) -> list[Fold]:
    """Read four emotions in one fold per session, with 20% of the other sessions as dev.

    s3prl draws the dev part from the order of its own lists, `meta_data/SessionN/train_meta_data.json`. If these lists
    are next to the sessions, the split is identical. Otherwise, the same draw uses dialogs in alphabetical order.
    """
    sessions: dict[int, list[Utterance]] = {}
    for number in range(1, 6):
        folder = find_folder(root, f"Session{number}", f"IEMOCAP_full_release/Session{number}")
        sessions[number] = list(read_session(folder))
        if not sessions[number]:
            raise UserError(f"{folder} has no labels of the four emotions in dialog/EmoEvaluation")
        require_audio([u.path for u in sessions[number]], f"{folder}/dialog/EmoEvaluation")
    lists = folder.parent / "meta_data"
    if not lists.is_dir():
        say(f"{lists} is missing: the dev parts are drawn from dialogs in alphabetical order, not in s3prl's")
    folds = []
    for held_out, test in sessions.items():
        rest = [u for number, part in sessions.items() if number != held_out for u in part]
        if lists.is_dir():
            rest = order_by_list(rest, lists / f"Session{held_out}" / "train_meta_data.json")
        folds.append(Fold(f"Session{held_out}", *split_at_random(rest), test))
    return folds


def split_at_random(utterances: Sequence[Utterance]) -> tuple[list[Utterance], list[Utterance]]:
    """Split into train and dev like torch's `random_split` after `torch.manual_seed(0)`."""
    order = torch.randperm(len(utterances), generator=torch.Generator().manual_seed(0)).tolist()
    cut = int(TRAIN_SHARE * len(utterances))
    return [utterances[i] for i in sorted(order[:cut])], [utterances[i] for i in sorted(order[cut:])]


def order_by_list(utterances: Sequence[Utterance], file: Path) -> list[Utterance]:
    """Return the utterances of one of s3prl's lists, in its order."""
    if not file.is_file():
        raise UserError(f"there is no {file}: s3prl has one list per session; add it, or remove {file.parent.parent}")
    known = {utterance.name: utterance for utterance in utterances}
    items = require(read_json(file), "meta_data", list_of(TABLE), str(file))
    names = [Path(require(item, "path", TEXT, f"{file}: meta_data")).stem for item in items]
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise UserError(f"{file} names {missing}, which has no label of the four emotions in dialog/EmoEvaluation")
    return [known[name] for name in names]


def read_session(folder: Path) -> Iterable[Utterance]:
    for file in sorted((folder / "dialog" / "EmoEvaluation").glob("*.txt")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            # [6.2901 - 8.2357]	Ses01F_impro01_F000	neu	[2.5000, 2.5000, 2.5000]
            fields = line.split("\t")
            if line.startswith("[") and len(fields) >= 3 and fields[2] in EMOTIONS:
                name = fields[1]
                path = folder / "sentences" / "wav" / name.rsplit("_", 1)[0] / f"{name}.wav"
                yield Utterance(name, path, (EMOTIONS[fields[2]],), name[:5] + name.rsplit("_", 1)[1][0])
