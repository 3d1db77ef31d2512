"""Labelled utterances, and how a corpus is divided for training, selection and testing."""

import gzip
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

import numpy as np

from sjepa.audio.io import AudioInfo, read_audio, read_header
from sjepa.data.corpus import audio_files
from sjepa.data.layouts.manifest import parse_object
from sjepa.data.storage import Place, read_bytes
from sjepa.errors import UserError
from sjepa.evaluate.superb.sound import Sound
from sjepa.progress import say

T = TypeVar("T")
LITE_UTTERANCES = (2000, 400, 800)  # train, dev, test; LibriSpeech has dev-clean alone instead
Label = str | tuple[str, ...]
"""Text for a sequence task; one class for each slot of a classification task."""


@dataclass(frozen=True)
class Utterance:
    name: str
    path: Path
    label: Label
    speaker: str = ""
    crop: int = 0
    """In training and selection hear only this many samples, from a random place, where there are more; 0 hears all."""
    start: int = 0
    """First sample of an utterance that is a part of a file."""
    samples: int = 0
    """Samples of an utterance that is a part of a file; 0 takes all that follow `start`."""
    inside: tuple[int, int] = (0, 0)
    """Offset and size in bytes of a recording that lies inside a larger file: a table or a tar."""
    sound: Sound = Sound.UNCHANGED

    @property
    def recording(self) -> str:
        """The recording that it is a part of."""
        return f"{self.path}@{self.inside[0]}+{self.inside[1]}" if self.inside[1] else str(self.path)

    @property
    def key(self) -> str:
        """What tells its features from those of other utterances."""
        part = f":{self.start}+{self.samples}" if self.start or self.samples else ""
        return f"{self.recording}{part}" + ("" if self.sound is Sound.UNCHANGED else f":{self.sound}")

    def open(self) -> Path | BinaryIO:
        """What is decoded: the file, or the bytes of the recording inside it."""
        return io.BytesIO(read_bytes(Place(str(self.path), *self.inside))) if self.inside[1] else self.path

    def header(self) -> AudioInfo:
        """Length, rate and channels of the whole recording."""
        return read_header(self.open(), self.recording)

    def read(self) -> np.ndarray:
        """Float32 samples at 16 kHz."""
        return read_audio(self.open(), self.start, self.samples or None, self.recording)

    def length(self, recording: int) -> int:
        """Samples of the utterance, of a recording with so many."""
        return min(self.samples, recording - self.start) if self.samples else recording - self.start


@dataclass(frozen=True)
class Fold:
    """Parts of a corpus; test data decide nothing."""

    needed: ClassVar[tuple[str, ...]] = ("train", "dev", "test")
    """Parts that must not be empty; the folds of a task that trains nothing need fewer."""

    name: str
    train: list[Utterance]
    dev: list[Utterance]
    test: list[Utterance]

    def __post_init__(self) -> None:
        for part in self.needed:
            if not getattr(self, part):
                raise UserError(f"{self.name}: the {part} part is empty")

    @property
    def utterances(self) -> list[Utterance]:
        return self.train + self.dev + self.test


def some(items: Sequence[T], most: int) -> list[T]:
    """At most so many items, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]


def some_of_each(utterances: Sequence[Utterance], most: int) -> list[Utterance]:
    """At most so many utterances, equally many of each label where it has them, so that no rare label goes."""
    if len(utterances) <= most:
        return list(utterances)
    classes: dict[Label, list[Utterance]] = {}
    for utterance in utterances:
        classes.setdefault(utterance.label, []).append(utterance)
    return [u for members in classes.values() for u in some(members, most // len(classes))]


def reduce_folds(folds: list[Fold], choose: Callable[[Sequence[Utterance], int], list[Utterance]]) -> list[Fold]:
    """The lite protocol's part of a corpus: so many utterances of each part."""
    train, dev, test = LITE_UTTERANCES
    return [Fold(f.name, choose(f.train, train), choose(f.dev, dev), choose(f.test, test)) for f in folds]


def relabel(fold: Fold, labels: dict[str, str]) -> Fold:
    """The same utterances with other labels, by name."""
    parts = ([replace(u, label=labels[u.name]) for u in part] for part in (fold.train, fold.dev, fold.test))
    return Fold(fold.name, *parts)


def folder_in(root: Path, *names: str) -> Path:
    """A folder of a corpus by any of its names; the root itself may be it."""
    for name in names:
        if (root / name).is_dir():
            return root / name
        if root.name == name and root.is_dir():
            return root
    raise UserError(f"{root} has no folder {' or '.join(names)}")


def json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file of labels, packed with gzip or not, every line of which must be one."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            row = parse_object(line)
            if isinstance(row, str):
                raise UserError(f"{file} line {number}: {row}")
            yield row


def require_audio(paths: Sequence[Path], source: str) -> None:
    """Refuse labels whose audio is not there."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"labels without audio: {source} names {missing[0]}{more}, which is not there")


def say_unlabelled(folder: Path, labelled: Sequence[Path]) -> None:
    """Say how much audio below a folder has no label, and so no part in the task."""
    known = {os.path.abspath(path) for path in labelled}
    unlabelled = [path for path in audio_files(folder, []) if os.path.abspath(path) not in known]
    if unlabelled:
        first = Path(unlabelled[0]).relative_to(folder)
        say(f"audio without labels in {folder}: {len(unlabelled)} left out, first {first}")


def split_by_speaker(utterances: Sequence[Utterance], corpus: str, what: str) -> Fold:
    """The lite protocol's parts of transcribed speech: 70% of the speakers train, 10% select, 20% test."""
    return Fold(f"{corpus} split by speaker", *by_group(utterances, (0.7, 0.1, 0.2), seed=0, what=what))


def by_group(utterances: Sequence[Utterance], shares: Sequence[float], seed: int, what: str) -> list[list[Utterance]]:
    """Divide so that no speaker is in two parts; `shares` are of speakers."""
    speakers = sorted({utterance.speaker for utterance in utterances})
    if len(speakers) < len(shares):
        raise UserError(f"{what} has {len(speakers)} speaker(s); a split by speaker needs at least {len(shares)}")
    order = np.random.default_rng(seed).permutation(speakers)
    cuts = np.round(np.cumsum(shares)[:-1] * len(speakers)).astype(int)
    places = np.arange(1, len(shares))
    cuts = places + np.maximum.accumulate(cuts - places)  # every part has a speaker
    cuts = np.clip(cuts, places, len(speakers) - places[::-1])
    part = {speaker: number for number, group in enumerate(np.split(order, cuts)) for speaker in group}
    return [[u for u in utterances if part[u.speaker] == number] for number in range(len(shares))]
