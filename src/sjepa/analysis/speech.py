"""Utterances to look at: files or a part of a corpus, with the labels that are known of them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sjepa.audio.io import SAMPLE_RATE, read_audio, read_header, show_path
from sjepa.data.corpus import audio_files
from sjepa.errors import UserError
from sjepa.evaluate.labelled import LabelledUtterance, read_labelled
from sjepa.evaluate.superb.records import sample_evenly
from sjepa.model.frontend import RECEPTIVE_FIELD
from sjepa.progress import say

Segment = tuple[float, float, str]
"""Start and end in seconds, and a label."""


@dataclass(frozen=True)
class Speech:
    """A stretch of an audio file and what is said in it; times count from the stretch's start."""

    name: str
    path: Path
    start: float
    duration: float
    """Of the whole file, in seconds."""
    samples: np.ndarray
    text: str = ""
    speaker: str = ""
    phones: tuple[Segment, ...] = ()
    words: tuple[Segment, ...] = ()


def read_labels(data: Path, subset: str, alignments: Path | None = None) -> list[LabelledUtterance]:
    """Labelled utterances of a corpus, or none if it is only audio. Alignments that are asked for must be there."""
    if alignments is not None:
        return read_labelled(data, subset, phones=False, alignments=alignments)
    try:
        return read_labelled(data, subset, phones=False)
    except UserError as error:
        say(f"No labels, going on without: {error}")
        return []


def choose(
    data: Path | None, files: list[Path], count: int, subset: str, alignments: Path | None = None
) -> list[tuple[Path, LabelledUtterance | None]]:
    """Files with their labels: those named, or so many of a corpus, evenly spaced over it."""
    known: dict[Path, LabelledUtterance] = {}
    if data is None and alignments is not None:
        raise UserError("--alignments: of which corpus? Give it as --data")
    if data is not None:
        if not data.is_dir():
            raise UserError(f"there is no folder {data}")
        known = {item.utterance.path.resolve(): item for item in read_labels(data, subset, alignments)}
    if not files:
        if data is None:
            raise UserError("which utterance? Name audio files, or give --data for some of a corpus")
        found = [item.utterance.path for item in known.values()] or [Path(path) for path in audio_files(data, [])]
        if not found:
            raise UserError(f"no audio in {data}")
        files = sample_evenly(found, count)
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise UserError(f"there is no file {show_path(missing[0])}")
    return [(path, known.get(path.resolve())) for path in files]


def read_speech(path: Path, label: LabelledUtterance | None, start: float, seconds: float) -> Speech:
    """A stretch of a file; of a longer one only so many seconds are read, and that is said."""
    duration = read_header(path).samples / SAMPLE_RATE
    if start >= duration:
        raise UserError(f"--start {start:g}: {show_path(path)} is {duration:.2f} seconds long")
    wanted = min(seconds, duration - start)
    if wanted * SAMPLE_RATE < RECEPTIVE_FIELD:
        raise UserError(
            f"{show_path(path)}: {wanted * 1000:.0f} ms from {start:g} s are too short: a frame needs 25 ms"
        )
    if wanted < duration - start:
        say(
            f"{show_path(path)} is {duration:,.0f} seconds long: {start:g} to {start + wanted:g} s are shown; "
            "--start and --seconds choose others"
        )
    samples = read_audio(path, round(start * SAMPLE_RATE), round(wanted * SAMPLE_RATE))
    if not samples.any():
        say(f"{show_path(path)}: silence, every sample is zero")
    if label is None:
        return Speech(show_path(path.name), path, start, duration, samples)
    phones = label.segments or runs(label.phones)
    return Speech(
        label.utterance.name,
        path,
        start,
        duration,
        samples,
        str(label.utterance.label),
        label.speaker,
        within(phones, start, wanted),
        within(label.words, start, wanted),
    )


def runs(labels: Sequence[str]) -> list[Segment]:
    """Labels at 100 a second as segments."""
    found: list[Segment] = []
    place = 0
    for label, group in itertools.groupby(labels):
        length = sum(1 for _ in group)
        found.append((place / 100, (place + length) / 100, label))
        place += length
    return found


def within(segments: Sequence[Segment], start: float, seconds: float) -> tuple[Segment, ...]:
    """Segments that touch a stretch, cut to it."""
    cut = ((max(a - start, 0.0), min(b - start, seconds), label) for a, b, label in segments)
    return tuple((round(a, 4), round(b, 4), label) for a, b, label in cut if b > a)
