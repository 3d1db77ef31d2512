"""IEMOCAP: four emotions in five sessions."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, folder_in, require_audio

EMOTIONS = {"neu": "neutral", "hap": "happy", "exc": "happy", "ang": "angry", "sad": "sad"}


def read_iemocap(root: Path) -> list[Fold]:
    """Four emotions, one fold per session; 20% of the other sessions select."""
    sessions = {}
    for number in range(1, 6):
        folder = folder_in(root, f"Session{number}", f"IEMOCAP_full_release/Session{number}")
        sessions[number] = list(read_session(folder))
        if not sessions[number]:
            raise UserError(f"{folder} has no labels of the four emotions in dialog/EmoEvaluation")
        require_audio([u.path for u in sessions[number]], f"{folder}/dialog/EmoEvaluation")
    folds = []
    for held_out, test in sessions.items():
        rest = [u for number, part in sessions.items() if number != held_out for u in part]
        order = np.random.default_rng(0).permutation(len(rest))
        cut = int(0.8 * len(rest))
        folds.append(
            Fold(
                f"Session{held_out}",
                [rest[i] for i in sorted(order[:cut])],
                [rest[i] for i in sorted(order[cut:])],
                test,
            )
        )
    return folds


def read_session(folder: Path) -> Iterable[Utterance]:
    for file in sorted((folder / "dialog" / "EmoEvaluation").glob("*.txt")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            # [6.2901 - 8.2357]	Ses01F_impro01_F000	neu	[2.5000, 2.5000, 2.5000]
            fields = line.split("\t")
            if line.startswith("[") and len(fields) >= 3 and fields[2] in EMOTIONS:
                name = fields[1]
                path = folder / "sentences" / "wav" / name.rsplit("_", 1)[0] / f"{name}.wav"
                yield Utterance(name, path, (EMOTIONS[fields[2]],), name[:5] + name.rsplit("_", 1)[1][0])
