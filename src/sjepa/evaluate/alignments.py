"""Phone and word alignments: Praat TextGrids (Montreal Forced Aligner), CTM files, and tables with start and end."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sjepa.audio.frames import frame_centres
from sjepa.audio.io import show_path
from sjepa.data.layouts.manifest import lines
from sjepa.errors import UserError

Segment = tuple[float, float, str]
"""Start and end in seconds, and a label."""
SILENCE = "SIL"
TABLES = (".csv", ".tsv", ".jsonl")
# Seconds. Aligners with frames of up to 30 ms leave the last part of a file unlabelled. Longer parts are silence.
END_TOLERANCE = 0.05
GAP = 1e-3  # seconds; shorter gaps between segments are not silence
# Column names of tables. The first that exists is used.
NAMES = ("utterance", "utt", "utterance_id", "utt_id", "id", "name", "file", "filename", "path")
STARTS, ENDS, LENGTHS = (
    ("start", "begin", "onset", "start_time"),
    ("end", "stop", "offset", "end_time"),
    ("duration", "dur"),
)
LABELS = {"phones": ("phone", "phoneme", "label", "symbol"), "words": ("word",)}


@dataclass
class Alignment:
    """Phones and words of one utterance or recording."""

    phones: list[Segment] = field(default_factory=list)
    words: list[Segment] = field(default_factory=list)


def read_alignments(place: Path) -> dict[str, Alignment]:
    """Read alignments by utterance or recording name, from a file or all files below a folder."""
    if not place.exists():
        raise UserError(f"there is no {place}: --alignments is a folder of TextGrids, or CTM files or tables")
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    found: dict[str, Alignment] = defaultdict(Alignment)
    for file in files:
        kind = file.suffix.lower()
        if kind == ".textgrid":
            name = file.relative_to(place).with_suffix("").as_posix() if place.is_dir() else file.stem
            found[name] = read_textgrid(file)
        elif kind == ".ctm":
            add_segments(found, read_ctm(file), guess_tier(file.stem))
        elif kind in TABLES:
            for tier, rows in read_table(file).items():
                add_segments(found, rows, tier)
    if not found:
        raise UserError(f"{place} has no alignments: looked for .TextGrid, .ctm, {', '.join(TABLES)}")
    return {name: complete_alignment(alignment, name) for name, alignment in found.items()}


def add_segments(found: dict[str, Alignment], rows: Iterable[tuple[str, Segment]], tier: str) -> None:
    for name, segment in rows:
        getattr(found[name], tier).append(segment)


def complete_alignment(alignment: Alignment, name: str) -> Alignment:
    """Sort segments, fill gaps between phones with silence, and leave out words without text.

    Raise UserError if segments overlap.
    """
    words = [segment for segment in sort_segments(alignment.words, name) if segment[2]]
    return Alignment(fill_gaps(sort_segments(alignment.phones, name)), words)


def sort_segments(segments: Sequence[Segment], name: str) -> list[Segment]:
    found = sorted(segments)
    for (_, reached, _), (start, _, label) in pairwise([(0.0, 0.0, ""), *found]):
        if start < reached - GAP:
            raise UserError(f"the alignment of {name} overlaps at {start:g} s: {label!r} begins before {reached:g} s")
    return found


def fill_gaps(segments: Sequence[Segment]) -> list[Segment]:
    filled: list[Segment] = []
    reached = 0.0
    for start, end, label in segments:
        if start > reached + GAP:
            filled.append((reached, start, SILENCE))
        filled.append((start, end, label or SILENCE))
        reached = end
    return filled


def guess_tier(name: str) -> str:
    """Return "words" if the name of a tier or file contains "word", otherwise "phones"."""
    return "words" if "word" in name.lower() else "phones"


def read_textgrid(file: Path) -> Alignment:
    """Read the interval tiers for words and phones (also `ann - phones`), in Praat's long or short text format."""
    tokens = read_textgrid_tokens(file)
    alignment = Alignment()
    try:
        if next(tokens) != "ooTextFile" or next(tokens) != "TextGrid":
            raise ValueError("it has no TextGrid header")
        next(tokens), next(tokens)  # start and end of the recording
        for _ in range(int(next(tokens))):
            kind, name = next(tokens), next(tokens)
            next(tokens), next(tokens)
            for _ in range(int(next(tokens))):
                if kind == "IntervalTier":
                    segment = (float(next(tokens)), float(next(tokens)), next(tokens).strip())
                    named = name.lower()
                    if "word" in named or "phon" in named:
                        getattr(alignment, guess_tier(named)).append(segment)
                else:  # points have a time and a mark
                    next(tokens), next(tokens)
    except (StopIteration, ValueError) as error:
        reason = str(error) or "it ends too early"  # StopIteration has no text
        raise UserError(f"{show_path(file)} is not a readable TextGrid ({reason})") from None
    if not alignment.phones and not alignment.words:
        raise UserError(f"{show_path(file)}: no tier is called phones or words")
    return alignment


def read_textgrid_tokens(file: Path) -> Iterator[str]:
    """Yield the strings and numbers of a TextGrid. Keys are skipped, so both text formats give the same tokens."""
    content = file.read_bytes()
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = content.decode(encoding, errors="replace")
    text = re.sub(r"\[\d+\]", "", text)  # the numbers of intervals
    for match in re.finditer(r'"((?:[^"]|"")*)"|(?<![\w.])(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])', text):
        yield match[1].replace('""', '"') if match[1] is not None else match[2]


def read_ctm(file: Path) -> Iterator[tuple[str, Segment]]:
    """Read lines of utterance, channel, start, duration and label."""
    with file.open(encoding="utf-8", errors="replace") as rows:
        for number, line in enumerate(rows, 1):
            if not line.strip() or line.startswith(";;"):
                continue
            try:
                name, _, start, duration, label = line.split()[:5]
                yield name, (float(start), float(start) + float(duration), label)
            except ValueError:
                raise UserError(
                    f"{show_path(file)} line {number}: not UTTERANCE CHANNEL START DURATION LABEL: {line.strip()[:60]}"
                ) from None


def read_table(file: Path) -> dict[str, list[tuple[str, Segment]]]:
    """Read rows of utterance, start, end or duration, and phone or word. Return nothing for other tables."""
    found: dict[str, list[tuple[str, Segment]]] = defaultdict(list)
    for number, row in lines(str(file)):
        if isinstance(row, str):
            raise UserError(f"{show_path(file)} line {number}: {row}")
        if first_value(row, STARTS) is None and not found:
            return {}
        tier = next((tier for tier, names in LABELS.items() if first_value(row, names) is not None), None)
        name, start = first_value(row, NAMES), first_value(row, STARTS)
        end, length = first_value(row, ENDS), first_value(row, LENGTHS)
        if tier is None or name is None or start is None or (end is None and length is None):
            raise UserError(f"{show_path(file)} line {number}: needs an utterance, a start, an end and a phone or word")
        try:
            begin = float(start)
            stop = float(end) if end is not None else begin + float(length)
        except (TypeError, ValueError):
            raise UserError(f"{show_path(file)} line {number}: start or end is not a number") from None
        found[tier].append((str(name), (begin, stop, str(first_value(row, LABELS[tier])))))
    return found


def first_value(row: dict[str, Any], names: Sequence[str]) -> Any:
    """Return the first value of a row that is not empty, among some columns."""
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def find_alignment(alignments: dict[str, Alignment], names: Sequence[str]) -> Alignment | None:
    """Return the alignment for the first matching name of an utterance."""
    return next((alignments[name] for name in names if name in alignments), None)


def cut_segments(segments: Sequence[Segment], start: float, duration: float | None) -> list[Segment]:
    """Return the segments of an excerpt, with times relative to its start."""
    end = float("inf") if duration is None else start + duration
    return [(max(a, start) - start, min(b, end) - start, label) for a, b, label in segments if b > start and a < end]


def frame_labels(segments: Sequence[Segment], frames: int, centres: np.ndarray | None = None) -> list[str]:
    """Return the label of the segment at each frame's centre. `centres` defaults to those of our encoder.

    Frames after the last segment are silence. The last segment continues for END_TOLERANCE.
    """
    ends = np.array([end for _, end, _ in segments], float)
    centres = frame_centres(frames) if centres is None else centres
    ends[-1] += END_TOLERANCE
    labels = [*(label for _, _, label in segments), SILENCE]
    return [labels[i] for i in np.searchsorted(ends, centres, side="right")]
