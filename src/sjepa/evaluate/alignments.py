"""Phone and word alignments: Praat TextGrids (Montreal Forced Aligner), CTM files, and tables with start and end."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sjepa.audio.io import shown
from sjepa.data.layouts.manifest import lines
from sjepa.errors import UserError

Segment = tuple[float, float, str]
"""Start and end in seconds, and a label."""
SILENCE = "SIL"
TABLES = (".csv", ".tsv", ".jsonl")
GAP = 1e-3  # seconds between neighbours that are no silence
# Columns of tables; the first that is there counts.
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
    """Alignments by the name of the utterance or of the recording, from a file or all files below a folder."""
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
            add(found, read_ctm(file), tier_of(file.stem))
        elif kind in TABLES:
            for tier, rows in read_table(file).items():
                add(found, rows, tier)
    if not found:
        raise UserError(f"{place} has no alignments: looked for .TextGrid, .ctm, {', '.join(TABLES)}")
    return {name: complete(alignment, name) for name, alignment in found.items()}


def add(found: dict[str, Alignment], rows: Iterable[tuple[str, Segment]], tier: str) -> None:
    for name, segment in rows:
        getattr(found[name], tier).append(segment)


def complete(alignment: Alignment, name: str) -> Alignment:
    """Segments in order, with silence where nothing was aligned; overlapping ones are refused."""
    return Alignment(fill(alignment.phones, name), fill(alignment.words, name, silence=""))


def fill(segments: Sequence[Segment], name: str, silence: str = SILENCE) -> list[Segment]:
    filled: list[Segment] = []
    reached = 0.0
    for start, end, label in sorted(segments):
        if start < reached - GAP:
            raise UserError(f"the alignment of {name} overlaps at {start:g} s: {label!r} begins before {reached:g} s")
        if start > reached + GAP:
            filled.append((reached, start, silence))
        filled.append((start, end, label or silence))
        reached = end
    return filled


def tier_of(name: str) -> str:
    """What a tier or a file is called tells words from phones; phones unless it says words."""
    return "words" if "word" in name.lower() else "phones"


def read_textgrid(file: Path) -> Alignment:
    """Interval tiers that are called words and phones (also `ann - phones`), in Praat's long or short text format."""
    tokens = textgrid_tokens(file)
    alignment = Alignment()
    try:
        if next(tokens) != "ooTextFile" or next(tokens) != "TextGrid":
            raise ValueError("it does not begin as a TextGrid does")
        next(tokens), next(tokens)  # start and end of the recording
        for _ in range(int(next(tokens))):
            kind, name = next(tokens), next(tokens)
            next(tokens), next(tokens)
            for _ in range(int(next(tokens))):
                if kind == "IntervalTier":
                    segment = (float(next(tokens)), float(next(tokens)), next(tokens).strip())
                    named = name.lower()
                    if "word" in named or "phon" in named:
                        getattr(alignment, tier_of(named)).append(segment)
                else:  # points have a time and a mark
                    next(tokens), next(tokens)
    except (StopIteration, ValueError) as error:
        raise UserError(f"{shown(file)} is not a TextGrid that can be read ({error or 'it ends too early'})") from None
    if not alignment.phones and not alignment.words:
        raise UserError(f"{shown(file)}: no tier is called phones or words")
    return alignment


def textgrid_tokens(file: Path) -> Iterator[str]:
    """Strings and numbers of a TextGrid; the words between them only explain, so that both formats read alike."""
    content = file.read_bytes()
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = content.decode(encoding, errors="replace")
    text = re.sub(r"\[\d+\]", "", text)  # the numbers of intervals
    for match in re.finditer(r'"((?:[^"]|"")*)"|(?<![\w.])(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])', text):
        yield match[1].replace('""', '"') if match[1] is not None else match[2]


def read_ctm(file: Path) -> Iterator[tuple[str, Segment]]:
    """Lines of utterance, channel, start, duration and label."""
    with file.open(encoding="utf-8", errors="replace") as rows:
        for number, line in enumerate(rows, 1):
            if not line.strip() or line.startswith(";;"):
                continue
            try:
                name, _, start, duration, label = line.split()[:5]
                yield name, (float(start), float(start) + float(duration), label)
            except ValueError:
                raise UserError(
                    f"{shown(file)} line {number}: not UTTERANCE CHANNEL START DURATION LABEL: {line.strip()[:60]}"
                ) from None


def read_table(file: Path) -> dict[str, list[tuple[str, Segment]]]:
    """Rows of an utterance, a start, an end or a duration, and a phone or a word; none if it is another table."""
    found: dict[str, list[tuple[str, Segment]]] = defaultdict(list)
    for number, row in lines(str(file)):
        if isinstance(row, str):
            raise UserError(f"{shown(file)} line {number}: {row}")
        if first_of(row, STARTS) is None and not found:
            return {}
        tier = next((tier for tier, names in LABELS.items() if first_of(row, names) is not None), None)
        name, start = first_of(row, NAMES), first_of(row, STARTS)
        end, length = first_of(row, ENDS), first_of(row, LENGTHS)
        if tier is None or name is None or start is None or (end is None and length is None):
            raise UserError(
                f"{shown(file)} line {number}: an utterance, a start, an end and a phone or word are needed"
            )
        try:
            begin = float(start)
            stop = float(end) if end is not None else begin + float(length)
        except (TypeError, ValueError):
            raise UserError(f"{shown(file)} line {number}: start or end is not a number") from None
        found[tier].append((str(name), (begin, stop, str(first_of(row, LABELS[tier])))))
    return found


def first_of(row: dict[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def find_alignment(alignments: dict[str, Alignment], names: Sequence[str]) -> Alignment | None:
    """The first of several names of an utterance that has an alignment."""
    return next((alignments[name] for name in names if name in alignments), None)


def cut_segments(segments: Sequence[Segment], start: float, duration: float | None) -> list[Segment]:
    """Segments of a stretch of a recording, counted from its start."""
    end = float("inf") if duration is None else start + duration
    return [(max(a, start) - start, min(b, end) - start, label) for a, b, label in segments if b > start and a < end]
