"""Choose and read the utterances to analyse: files, or a part of a corpus, with their labels."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sjepa.audio.io import SAMPLE_RATE, read_audio, read_header, show_path
from sjepa.data.corpus import audio_files
from sjepa.errors import UserError
from sjepa.evaluate.alignments import Segment, cut_segments
from sjepa.evaluate.labelled import LabelledUtterance, read_labelled
from sjepa.evaluate.superb.records import sample_evenly
from sjepa.model.frontend import RECEPTIVE_FIELD
from sjepa.progress import say


@dataclass(frozen=True)
class Speech:
    """A stretch of an audio file with its text and labels. Times count from the start of the stretch."""

    name: str
    path: Path
    start: float
    duration: float
    """Length of the whole file, in seconds."""
    samples: np.ndarray
    text: str = ""
    speaker: str = ""
    phones: tuple[Segment, ...] = ()
    words: tuple[Segment, ...] = ()


def read_labels(data: Path, subset: str, alignments: Path | None = None) -> list[LabelledUtterance]:
    """Read the labelled utterances of a corpus, none if it has only audio. Requested alignments must exist."""
    if alignments is not None:
        return read_labelled(data, subset, phones=False, alignments=alignments)
    try:
        return read_labelled(data, subset, phones=False)
    except UserError as error:
        say(f"Continuing without labels: {error}")
        return []


def choose_files(
    data: Path | None, files: list[Path], count: int, subset: str, alignments: Path | None = None
) -> list[tuple[Path, LabelledUtterance | None]]:
    """Return files with their labels: those given, or `count` files evenly spaced over a corpus."""
    known: dict[Path, LabelledUtterance] = {}
    if data is None and alignments is not None:
        raise UserError("--alignments needs --data: the corpus that the alignments belong to")
    if data is not None:
        if not data.is_dir():
            raise UserError(f"there is no folder {data}")
        known = {item.utterance.path.resolve(): item for item in read_labels(data, subset, alignments)}
    if not files:
        if data is None:
            raise UserError("no utterance given: name audio files, or give a corpus with --data")
        found = [item.utterance.path for item in known.values()] or [Path(path) for path in audio_files(data, [])]
        if not found:
            raise UserError(f"no audio in {data}")
        files = sample_evenly(found, count)
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise UserError(f"there is no file {show_path(missing[0])}")
    return [(path, known.get(path.resolve())) for path in files]


def read_speech(path: Path, label: LabelledUtterance | None, start: float, seconds: float) -> Speech:
    """Read a stretch of at most `seconds` of a file, and print a note if the file is longer."""
    duration = read_header(path).samples / SAMPLE_RATE
    if start >= duration:
        raise UserError(f"--start {start:g}: {show_path(path)} is {duration:.2f} seconds long")
    wanted = min(seconds, duration - start)
    if wanted * SAMPLE_RATE < RECEPTIVE_FIELD:
        raise UserError(f"{show_path(path)}: {wanted * 1000:.0f} ms from {start:g} s are too short for a frame (25 ms)")
    if wanted < duration - start:
        say(
            f"{show_path(path)} is {duration:,.0f} seconds long: using {start:g} to {start + wanted:g} s; "
            "choose another stretch with --start and --seconds"
        )
    samples = read_audio(path, round(start * SAMPLE_RATE), round(wanted * SAMPLE_RATE))
    if not samples.any():
        say(f"{show_path(path)}: silence, every sample is zero")
    if label is None:
        return Speech(show_path(path.name), path, start, duration, samples)
    phones = label.segments or merge_labels(label.phones)
    return Speech(
        label.utterance.name,
        path,
        start,
        duration,
        samples,
        str(label.utterance.label),
        label.speaker,
        excerpt_segments(phones, start, wanted),
        excerpt_segments(label.words, start, wanted),
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
