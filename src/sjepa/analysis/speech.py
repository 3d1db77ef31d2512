"""Choose and read the utterances to analyse: files, or a part of a corpus, with their labels."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from sjepa.audio.frames import RECEPTIVE_FIELD
from sjepa.audio.io import SAMPLE_RATE, BadAudioError, show_path
from sjepa.data.corpus import list_audio
from sjepa.errors import UserError
from sjepa.evaluate.alignments import Segment, cut_segments
from sjepa.evaluate.labelled import LabelledUtterance, NoLabelsError, read_labelled
from sjepa.evaluate.superb.records import Utterance, sample_evenly
from sjepa.files import require_folder
from sjepa.progress import say, track

T = TypeVar("T")
R = TypeVar("R")
NAMED = 5  # unusable utterances that are reported one by one


@dataclass(frozen=True)
class Speech:
    """A stretch of an utterance with its text and labels. Times count from the start of the stretch."""

    utterance: Utterance
    start: float
    duration: float
    """Length of the whole utterance, in seconds."""
    samples: np.ndarray
    text: str = ""
    speaker: str = ""
    phones: tuple[Segment, ...] = ()
    words: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class CorpusLabels:
    """A corpus whose labels are read when they are first needed, and only once."""

    data: Path
    subset: str

    @cached_property
    def labels(self) -> list[LabelledUtterance]:
        return read_labels(self.data, self.subset)


def read_labels(data: Path, subset: str, alignments: Path | None = None) -> list[LabelledUtterance]:
    """Read the labelled utterances of a corpus, none if it has only audio. Requested alignments must exist."""
    if alignments is not None:
        return read_labelled(data, subset, phones=False, alignments=alignments)
    try:
        return read_labelled(data, subset, phones=False)
    except NoLabelsError:
        say(f"{show_path(data)} has no transcripts or phone labels, so its audio is shown without them")
    except UserError as error:
        say(f"The audio is shown without text and phones: {error}")
    return []


def find_utterances(
    data: Path | None, files: list[Path], count: int, subset: str, alignments: Path | None = None
) -> list[LabelledUtterance]:
    """Return the given files with the labels that the corpus has for them, or `count` utterances of the corpus."""
    labels: list[LabelledUtterance] = []
    if data is None and alignments is not None:
        raise UserError("--alignments needs --data: the corpus that the alignments belong to")
    if data is not None:
        require_folder(data)
        labels = read_labels(data, subset, alignments)
    if files:
        known: dict[Path, list[LabelledUtterance]] = {}
        for item in labels:
            known.setdefault(item.utterance.path.resolve(), []).append(item)
        names = short_names(files)
        return [label_file(path, known.get(path.resolve(), []), name) for path, name in zip(files, names, strict=True)]
    if data is None:
        raise UserError("no utterance given: name audio files, or give a corpus with --data")
    return sample_corpus(data, labels, count)


def sample_corpus(data: Path, labels: list[LabelledUtterance], count: int) -> list[LabelledUtterance]:
    """Return `count` labelled utterances, or as many audio files of the corpus if it has no labels."""
    if labels:
        return sample_evenly(labels, count)
    found = list_audio(data)
    if not found:
        raise UserError(f"there is no audio in {data}")
    chosen = sample_evenly(found, count)
    return [label_file(path, [], name) for path, name in zip(chosen, short_names(chosen), strict=True)]


def short_names(files: Sequence[Path]) -> list[str]:
    """Return the names of files, with the folders below their common one if two have the same name."""
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        whole = [file.resolve() for file in files]
        common = os.path.commonpath([file.parent for file in whole])
        names = [file.relative_to(common).as_posix() for file in whole]
    return [show_path(name) for name in names]


def label_file(path: Path, known: list[LabelledUtterance], name: str = "") -> LabelledUtterance:
    """Return a file as one utterance, with its labels unless it holds several utterances."""
    if not path.is_file():
        raise UserError(f"there is no file {show_path(path)}")
    if len(known) == 1:
        return known[0]
    if known:
        say(f"{show_path(path)} has {len(known)} labelled utterances: it is shown as a whole, without labels")
    return LabelledUtterance(Utterance(name or show_path(path.name), path, ""))


def read_usable(
    sample: Sequence[T], read: Callable[[T], R], description: str, strict: bool = False
) -> Iterator[tuple[T, R]]:
    """Read the utterances of a sample. Unusable audio is left out and reported; UserError if nothing is left.

    With `strict`, unusable audio raises BadAudioError at once.
    """
    refused: list[str] = []
    for item in track(sample, description, len(sample)):
        try:
            found = read(item)
        except BadAudioError as error:
            if strict:
                raise
            refused.append(str(error))
            if len(refused) <= NAMED:
                say(f"left out: {error}")
            continue
        yield item, found
    if len(refused) == len(sample):
        raise UserError(f"no utterance of the sample could be used: {refused[0] if refused else 'it is empty'}")
    if len(refused) > NAMED:
        say(f"left out: {len(refused) - NAMED} more")


def read_speech(item: LabelledUtterance, start: float, seconds: float) -> Speech:
    """Read a stretch of at most `seconds` of an utterance, and print a note if the utterance is longer."""
    utterance = item.utterance
    whole = utterance.length(utterance.header().samples)
    name, duration = show_path(utterance.path), whole / SAMPLE_RATE
    if start >= duration:
        raise BadAudioError(f"--start {start:g}: {name} is {duration:.2f} seconds long")
    wanted = min(seconds, duration - start)
    if wanted * SAMPLE_RATE < RECEPTIVE_FIELD:
        raise BadAudioError(f"{name}: {wanted * 1000:.0f} ms from {start:g} s are too short for a frame (25 ms)")
    if wanted < duration - start:
        say(
            f"{name} is {duration:,.0f} seconds long: using {start:g} to {start + wanted:g} s; "
            "--start and --seconds of `sjepa analyze utterance` choose another stretch"
        )
    first = utterance.start + round(start * SAMPLE_RATE)
    samples = replace(utterance, start=first, samples=round(wanted * SAMPLE_RATE)).read()
    if not samples.any():
        say(f"{name}: silence, every sample is zero")
    return Speech(
        utterance,
        start,
        duration,
        samples,
        str(utterance.label),
        item.speaker,
        excerpt_segments(item.segments or merge_labels(item.phones), start, wanted),
        excerpt_segments(item.words, start, wanted),
    )


def merge_labels(labels: Sequence[str]) -> list[Segment]:
    """Merge labels at 100 per second into segments."""
    found: list[Segment] = []
    place = 0
    for label, group in itertools.groupby(labels):
        length = sum(1 for _ in group)
        found.append((place / 100, (place + length) / 100, label))
        place += length
    return found


def excerpt_segments(segments: Sequence[Segment], start: float, seconds: float) -> tuple[Segment, ...]:
    """Return the segments that overlap a stretch, cut to it."""
    cut = cut_segments(segments, start, seconds)
    return tuple((round(a, 4), round(b, 4), label) for a, b, label in cut if b > a)
