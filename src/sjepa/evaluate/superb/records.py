"""Labelled utterances, and splits of a corpus into train, dev and test."""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from sjepa.audio.io import AudioInfo, BadAudioError, clip_stretch, read_audio, read_header
from sjepa.counts import format_count, name_first
from sjepa.data.corpus import audio_files
from sjepa.data.layouts.manifest import lines
from sjepa.data.storage import ByteRange, read_bytes
from sjepa.errors import UserError
from sjepa.evaluate.superb.sound import Sound
from sjepa.progress import say, track

T = TypeVar("T")
LITE_UTTERANCES = (2000, 400, 800)  # train, dev, test; LibriSpeech uses all of dev-clean instead
SHARES = (0.7, 0.1, 0.2)  # of the speakers in train, dev and test, if a corpus has no splits
HEADER_THREADS = 8
REMEDY = "repair this file or remove it from the corpus"
Label = str | tuple[str, ...]
"""Text for a sequence task; one class for each slot of a classification task."""


@contextmanager
def add_remedy() -> Iterator[None]:
    """Add to the error of an unusable file what to do about it."""
    try:
        yield
    except BadAudioError as error:
        raise BadAudioError(f"{error}; {REMEDY}") from error


@dataclass(frozen=True)
class Utterance:
    """A recording, or a part of one, with its label."""

    name: str
    path: Path
    label: Label
    speaker: str = ""
    crop: int = 0
    """Length in samples of a random crop in training and selection. 0 uses all samples."""
    start: int = 0
    """First sample in the recording."""
    samples: int = 0
    """Number of samples. 0 uses all samples after `start`."""
    inside: tuple[int, int] = (0, 0)
    """Offset and size in bytes of a recording inside a larger file, such as a table or a tar."""
    sound: Sound = Sound.UNCHANGED

    @property
    def recording(self) -> str:
        """Identifier of the recording."""
        return f"{self.path}@{self.inside[0]}+{self.inside[1]}" if self.inside[1] else str(self.path)

    @property
    def key(self) -> str:
        """Identifier of its features."""
        part = f":{self.start}+{self.samples}" if self.start or self.samples else ""
        return f"{self.recording}{part}" + ("" if self.sound is Sound.UNCHANGED else f":{self.sound}")

    def open(self) -> Path | BinaryIO:
        """Return the file, or the bytes of the recording inside it."""
        return io.BytesIO(read_bytes(ByteRange(str(self.path), *self.inside))) if self.inside[1] else self.path

    def header(self) -> AudioInfo:
        """Read length, sample rate and channels of the whole recording."""
        with add_remedy():
            return read_header(self.open(), self.recording)

    def read(self) -> np.ndarray:
        """Read float32 samples at 16 kHz."""
        with add_remedy():
            return read_audio(self.open(), self.start, self.samples or None, self.recording)

    def length(self, recording: int) -> int:
        """Return the samples of the utterance, given those of the recording."""
        samples = self.samples or recording - self.start
        with add_remedy():
            return clip_stretch(self.start, samples, recording, f"{self.recording}: {self.name}")


@dataclass(frozen=True)
class Fold:
    """Train, dev and test parts of a corpus."""

    name: str
    train: list[Utterance]
    dev: list[Utterance]
    test: list[Utterance]

    def __post_init__(self) -> None:
        for part in ("train", "dev", "test"):
            if not getattr(self, part):
                raise UserError(f"{self.name}: the {part} part is empty")

    @property
    def utterances(self) -> list[Utterance]:
        return self.train + self.dev + self.test


def measure_recordings(utterances: Iterable[Utterance]) -> dict[str, int]:
    """Read the length of every recording from its header, in samples. Raise BadAudioError for other files."""
    recordings = {u.recording: u for u in utterances}
    ordered = [recordings[name] for name in sorted(recordings)]
    with ThreadPoolExecutor(HEADER_THREADS) as pool:
        headers = track(pool.map(Utterance.header, ordered), "Reading headers", len(ordered))
        return {u.recording: info.samples for u, info in zip(ordered, headers, strict=True)}


def measure_lengths(utterances: Sequence[Utterance]) -> np.ndarray:
    """Return the length of every utterance in samples, from the headers of the recordings."""
    recordings = measure_recordings(utterances)
    return np.array([u.length(recordings[u.recording]) for u in utterances])


def sample_evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]


def sample_each_label(utterances: Sequence[Utterance], most: int) -> list[Utterance]:
    """Return at most `most` utterances, with the same limit for each label, to keep rare labels.

    If there are more labels than `most`, one utterance each of evenly spaced labels is kept.
    """
    if len(utterances) <= most:
        return list(utterances)
    classes: dict[Label, list[Utterance]] = {}
    for utterance in utterances:
        classes.setdefault(utterance.label, []).append(utterance)
    each = max(1, most // len(classes))
    return sample_evenly([u for members in classes.values() for u in sample_evenly(members, each)], most)


def reduce_folds(folds: list[Fold], choose: Callable[[Sequence[Utterance], int], list[Utterance]]) -> list[Fold]:
    """Reduce each part of a corpus to the size of the lite protocol."""
    train, dev, test = LITE_UTTERANCES
    return [Fold(f.name, choose(f.train, train), choose(f.dev, dev), choose(f.test, test)) for f in folds]


def relabel(fold: Fold, labels: dict[str, str]) -> Fold:
    """Replace the labels of all utterances, by name."""
    parts = ([replace(u, label=labels[u.name]) for u in part] for part in (fold.train, fold.dev, fold.test))
    return Fold(fold.name, *parts)


def find_folder(root: Path, *names: str) -> Path:
    """Find a folder of a corpus by any of its names. It may be the root itself."""
    for name in names:
        if (root / name).is_dir():
            return root / name
        if root.absolute().name == name and root.is_dir():  # absolute, because `.` has no name
            return root
    raise UserError(f"{root} has no folder {' or '.join(names)}")


def read_json_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the numbered objects of a JSONL file, plain or compressed with gzip. Raise UserError for any other line."""
    for number, row in lines(str(file)):
        if isinstance(row, str):
            raise UserError(f"{file} line {number}: {row}")
        if not is_unicode(row):
            raise UserError(f"{file} line {number}: not UTF-8 text")
        yield number, row


def is_unicode(row: dict[str, Any]) -> bool:
    """Return whether all text of a row is valid. `lines` reads other bytes as surrogates, which cannot be written."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def require_audio(paths: Sequence[Path], source: str) -> None:
    """Raise UserError if the audio of a label is missing."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"labels without audio: {source} names {name_first(missing)}, which does not exist")


def report_unlabelled(folder: Path, labelled: Sequence[Path]) -> None:
    """Report audio files below a folder that have no label and are not used."""
    known = {os.path.abspath(path) for path in labelled}
    unlabelled = [path for path in audio_files(folder, []) if os.path.abspath(path) not in known]
    if unlabelled:
        first = Path(unlabelled[0]).relative_to(folder)
        say(f"audio without labels in {folder}: {len(unlabelled)} left out, first {first}")


def split_by_speaker(utterances: Sequence[Utterance], corpus: str, what: str) -> Fold:
    """Split transcribed speech for the lite protocol: 70% of the speakers train, 10% dev, 20% test."""
    return Fold(f"{corpus} split by speaker", *split_speakers(utterances, SHARES, seed=0, what=what))


def split_speakers(
    utterances: Sequence[Utterance], shares: Sequence[float], seed: int, what: str
) -> list[list[Utterance]]:
    """Split utterances into parts with disjoint speakers. `shares` are fractions of the speakers.

    Utterances without a speaker are left out, because they may be from a speaker of any part.
    """
    known = [utterance for utterance in utterances if utterance.speaker]
    if len(known) < len(utterances):
        say(f"{what}: {format_count(len(utterances) - len(known), 'utterance')} without a speaker left out")
    speakers = sorted({utterance.speaker for utterance in known})
    if len(speakers) < len(shares):
        raise UserError(
            f"{what} has {format_count(len(speakers), 'speaker')}; a split by speaker needs at least {len(shares)}"
        )
    order = np.random.default_rng(seed).permutation(speakers)
    groups = np.split(order, cut_places(shares, len(speakers)))
    part = {speaker: number for number, group in enumerate(groups) for speaker in group}
    return [[u for u in known if part[u.speaker] == number] for number in range(len(shares))]


def cut_places(shares: Sequence[float], count: int) -> np.ndarray:
    """Return where to cut `count` things into parts of these shares. Every part has at least one."""
    cuts = np.round(np.cumsum(shares)[:-1] * count).astype(int)
    places = np.arange(1, len(shares))
    cuts = places + np.maximum.accumulate(cuts - places)
    return np.clip(cuts, places, count - places[::-1])
