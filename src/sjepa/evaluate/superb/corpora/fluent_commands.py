"""Fluent Speech Commands: three slots of an intent."""

import csv
import io
from pathlib import Path

from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, report_unlabelled, require_audio
from sjepa.files import read_text

INTENT_SLOTS = ("action", "object", "location")


def read_fluent_commands(root: Path) -> list[Fold]:
    """Read Fluent Speech Commands: action, object and location of each utterance."""
    if (root / "fluent_speech_commands_dataset").is_dir():
        root = root / "fluent_speech_commands_dataset"
    parts = []
    for subset in ("train", "valid", "test"):
        table = root / "data" / f"{subset}_data.csv"
        if not table.is_file():
            raise UserError(f"there is no {table}: Fluent Speech Commands has one for train, valid and test")
        rows = list(csv.DictReader(io.StringIO(read_text(table), newline="")))
        for number, row in enumerate(rows, 2):
            missing = [column for column in ("path", "speakerId", *INTENT_SLOTS) if row.get(column) is None]
            if missing:
                raise UserError(f"{table} line {number}: there is no {missing[0]}")
        utterances = [
            Utterance(row["path"], root / row["path"], tuple(row[slot] for slot in INTENT_SLOTS), row["speakerId"])
            for row in rows
        ]
        require_audio([u.path for u in utterances], str(table))
        parts.append(utterances)
    report_unlabelled(root, [u.path for part in parts for u in part])
    return [Fold("Fluent Speech Commands", *parts)]
