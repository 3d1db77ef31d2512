"""Prediction files for the SUPERB leaderboard, with the names that s3prl uses in an experiment folder.

s3prl's `submit/submit.py` collects these files from experiment folders. `pack` writes the same `predict.zip`.
"""

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjepa.evaluate.superb.records import Utterance
from sjepa.files import atomic_file

Line = Callable[[Utterance, Any], str]


@dataclass(frozen=True)
class Submission:
    """The files of a task's test predictions, one per fold."""

    places: dict[str, str]
    """Maps files or folders in a task's folder to their paths in `predict.zip`."""
    line: Line | None = None
    """Formats an utterance and its prediction as a line. None if the task writes its own files."""
    decoded: str = ""
    """The name of the file for decoding with a language model, with the leaderboard's settings."""

    def files(self, utterances: Sequence[Utterance], predictions: Sequence[Any], fold: int) -> dict[str, str]:
        return {list(self.places)[fold]: self.text(utterances, predictions)}

    def decoded_files(self, utterances: Sequence[Utterance], predictions: Sequence[Any]) -> dict[str, str]:
        return {self.decoded: self.text(utterances, predictions)} if self.decoded else {}

    def text(self, utterances: Sequence[Utterance], predictions: Sequence[Any]) -> str:
        assert self.line is not None
        return "".join(self.line(u, prediction) + "\n" for u, prediction in zip(utterances, predictions, strict=True))


def format_transcript(utterance: Utterance, text: str) -> str:
    """Format a line of an `.ark` file: name and words."""
    return f"{utterance.path.stem} {' '.join(text.split())}"


def join_path(utterance: Utterance, parts: int) -> str:
    """Join the last parts of an utterance's path with hyphens."""
    return "-".join(utterance.path.parts[-parts:])


def pack(tasks: Sequence[tuple[Submission, Path]], archive: Path) -> list[str]:
    """Write `predict.zip` from the files in the folders of tasks. Return the leaderboard's names of its contents."""
    found = [
        (place, folder / name)
        for submission, folder in tasks
        for name, place in submission.places.items()
        if (folder / name).exists()
    ]
    if found:
        with atomic_file(archive) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as target:
            for place, source in found:
                for file in [source] if source.is_file() else sorted(source.iterdir()):
                    target.write(file, f"predict/{place}" + ("" if file == source else f"/{file.name}"))
    return [place.split("/")[0] for place, _ in found]
