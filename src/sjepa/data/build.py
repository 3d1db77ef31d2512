"""Build an index: find audio, read headers in parallel, cut long recordings, keep what is usable."""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sjepa.audio.frames import RECEPTIVE_FIELD, describe_too_short
from sjepa.audio.io import SAMPLE_RATE, AudioInfo, BadAudioError, clip_stretch, open_audio, read_header, show_path
from sjepa.counts import format_count
from sjepa.data.corpus import Corpus, describe_refused, make_header_pool
from sjepa.data.index import AUDIO, Row, import_ipc, merge_parts, report_write_errors, write_part
from sjepa.data.index_folder import IndexFolder
from sjepa.data.languages import select_languages
from sjepa.data.layouts import Found, Item, Layout, find_items
from sjepa.data.outages import collect
from sjepa.data.silence import Stretch, cut_at_silences, join_voice, loudness
from sjepa.data.storage import ByteRange, is_url, read_bytes
from sjepa.errors import UserError
from sjepa.locks import lock_folder
from sjepa.progress import Bar, bar, track

PART = 1024  # items per part; an interrupted build loses at most one part
LONGEST = 2**31 - 1  # largest number of samples that the columns of an index can hold


def build_index(
    sources: list[str],
    out: Path,
    *,
    layout: Layout,
    max_seconds: float,
    cut_transcribed: bool,
    languages: Sequence[str] = (),
) -> dict[str, Any]:
    """Index audio into a folder, or continue an interrupted call. Returns the contents of index.json.

    With `languages`, only utterances in these languages.
    """
    import_ipc()  # fail before the work if it is not installed
    for source in sources:
        if not os.path.exists(source):
            raise UserError(f"there is no file or folder {show_path(source)}")
        if not (os.path.isfile(source) or os.path.isdir(source)):
            raise UserError(f"{show_path(source)} is neither a regular file nor a folder")
    with lock_folder(out):
        return write_index(sources, out, layout, max_seconds, cut_transcribed, languages)


def write_index(
    sources: list[str],
    out: Path,
    layout: Layout,
    max_seconds: float,
    cut_transcribed: bool,
    languages: Sequence[str],
) -> dict[str, Any]:
    """The work of `build_index`, which has locked the folder."""
    index = IndexFolder(out)
    settings: dict[str, Any] = {
        "sources": [show_path(os.path.abspath(source)) for source in sources],
        "layout": layout,
        "max_seconds": max_seconds,
        "cut_transcribed": cut_transcribed,
        "languages": list(languages) or None,
    }

    def find() -> Found:
        return select_languages(find_items(sources, layout, index.unpacked), languages)

    if index.exists:
        return index.require_same(settings)
    index.require_ours(settings)
    total = count_items(find())
    with bar("Reading headers", total) as progress:
        parts = write_parts(find(), index, settings, progress)
    with report_write_errors(out):
        return merge_parts(index, parts, settings)


def count_items(items: Found) -> int:
    """Count the items, without the reasons for refused ones."""
    with bar("Looking for audio", None) as progress:
        total = 0
        for item in items:
            if isinstance(item, Item):
                total += 1
                progress.advance()
    return total


def write_parts(items: Found, index: IndexFolder, settings: dict[str, Any], progress: Bar) -> list[Path]:
    """Read the headers of all items into parts, and return these. Finished parts of an interrupted call are kept."""
    with report_write_errors(index.path):
        index.begin(settings)
    parts = []
    pool = make_header_pool()
    try:
        for chunk in split_chunks(items):
            part = index.part(name_part(chunk, settings))
            if part.exists():
                progress.skip(sum(isinstance(item, Item) for item in chunk))
            else:
                read_part(chunk, part, index, settings, pool, progress)
            parts.append(part)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return parts


def read_part(
    chunk: list[Item | str],
    part: Path,
    index: IndexFolder,
    settings: dict[str, Any],
    pool: ThreadPoolExecutor,
    progress: Bar,
) -> None:
    """Read the headers of some items and write them as a part."""
    rows: list[Row] = []
    refused = []
    limit = round(settings["max_seconds"] * SAMPLE_RATE)
    results = read_rows(chunk, pool, limit, settings["cut_transcribed"])
    for item, result in zip(chunk, results, strict=True):
        if isinstance(result, str):
            refused.append(result)
        else:
            rows += result
        progress.advance(isinstance(item, Item))
    with report_write_errors(index.path):
        write_part(part, rows, refused)


def read_corpus(source: str, max_seconds: float) -> Corpus:
    """Read a source in any layout as a corpus. Headers are read every time; an index stores them."""
    limit = round(max_seconds * SAMPLE_RATE)
    items = list(find_items([source], "auto"))
    with make_header_pool() as pool:
        results = read_rows(items, pool, limit, cut_transcribed=True)  # a corpus has no transcripts
        found = list(track(results, "Reading headers", len(items)))
    refused = [result for result in found if isinstance(result, str)]
    rows = [row for result in found if not isinstance(result, str) for row in result]
    if not rows:
        raise UserError(
            f"no usable audio in {source}: {describe_refused(refused) if refused else 'the source lists none'}"
        )
    paths = list(dict.fromkeys(row.path for row in rows))
    places = {path: place for place, path in enumerate(paths)}
    start, length, offset, size = (
        np.array([getattr(row, name) for row in rows], AUDIO[name])
        for name in ("start", "length", "byte_offset", "byte_size")
    )
    file = np.array([places[row.path] for row in rows], AUDIO["file"])
    digest = hashlib.sha256(repr([(row.id, row.start, row.length) for row in rows]).encode(errors="surrogateescape"))
    return Corpus(paths, file, start, length, offset, size, refused=refused, identity=digest.hexdigest()[:16])


def split_chunks(items: Found) -> Iterator[list[Item | str]]:
    while chunk := list(islice(items, PART)):
        yield chunk


def name_part(chunk: list[Item | str], settings: dict[str, Any]) -> str:
    """A name that changes if an item, a setting or a local file does, so that repaired files are read again."""
    versions = [None if isinstance(item, str) else file_version(item.place.path) for item in chunk]
    return hashlib.sha256(repr((chunk, versions, settings)).encode(errors="surrogateescape")).hexdigest()[:24]


def file_version(path: str) -> tuple[int, int] | None:
    """Size and time of change of a local file. None for a URL, and for a file that cannot be read."""
    if is_url(path):
        return None
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return None
    return status.st_size, status.st_mtime_ns


def read_rows(
    items: list[Item | str], pool: ThreadPoolExecutor, limit: int, cut_transcribed: bool
) -> Iterator[list[Row] | str]:
    """The utterances of each item, or the reason why it is refused."""

    def read(item: Item | str) -> list[Row] | str | BadAudioError:
        return make_rows(item, limit, cut_transcribed)

    def place(item: Item | str) -> ByteRange:
        return ByteRange("") if isinstance(item, str) else item.place

    return collect(pool, read, items, place)


def make_rows(item: Item | str, limit: int, cut_transcribed: bool) -> list[Row] | str | BadAudioError:
    """The utterances of an item, or why it is refused: a reason, or the error of reading it."""
    if isinstance(item, str):
        return item
    name, start = show_path(item.place.path), round(item.offset * SAMPLE_RATE)
    try:
        info = read_cached_header(item.place)
        samples = info.samples - start if item.duration is None else round(item.duration * SAMPLE_RATE)
        samples = clip_stretch(start, samples, info.samples, f"{name}: {item.id}")
    except BadAudioError as error:
        return error
    if samples < RECEPTIVE_FIELD:
        return f"{name}: {item.id}: {describe_too_short(samples)}"
    whole: list[Stretch] = [(start, samples)]
    stretches = join_voice(item.voice, info.samples, limit) if item.voice else whole
    if cut_transcribed or not item.text:
        try:
            stretches = [piece for stretch in stretches for piece in cut_pieces(item.place, stretch, limit)]
        except BadAudioError as error:
            return error
    stretches = [stretch for stretch in stretches if stretch[1] >= RECEPTIVE_FIELD]
    if any(length > LONGEST for _, length in stretches):
        return f"{name}: {item.id} is longer than an index can hold ({LONGEST // SAMPLE_RATE // 3600} hours)"
    if not stretches:
        return f"{name}: {item.id} is silent"
    text = item.text if stretches == whole else ""
    numbered = [item.id] if stretches == whole else [f"{item.id}#{number:04d}" for number in range(len(stretches))]
    return [
        Row(
            *item.place,
            *stretch,
            id=key,
            speaker=item.speaker,
            sex=item.sex,
            chapter=item.chapter,
            text=text,
            split=item.split,
            labels=item.labels,
        )
        for stretch, key in zip(stretches, numbered, strict=True)
    ]


@lru_cache(maxsize=256)
def read_cached_header(place: ByteRange) -> AudioInfo:
    return read_header(open_place(place), show_path(place.path))


def open_place(place: ByteRange) -> str | BinaryIO:
    """Return what soundfile can open: a path, or the bytes of a tar member or of a URL."""
    return io.BytesIO(read_bytes(place)) if place.size or is_url(place.path) else place.path


def cut_pieces(place: ByteRange, stretch: Stretch, limit: int) -> list[Stretch]:
    """Cut a stretch that is too long at silences."""
    start, samples = stretch
    if samples <= limit:
        return [stretch]
    with open_audio(open_place(place), show_path(place.path)) as sound:
        power = loudness(sound, start, samples)
    return cut_at_silences(power, start, samples, limit)


def summarise_index(facts: dict[str, Any]) -> list[str]:
    """Describe an index in a few lines: hours, speakers, durations."""
    sexes = ", ".join(f"{count:,} {sex}" for sex, count in facts["sexes"].items())
    amount = f"{format_count(facts['utterances'], 'utterance')} of {format_count(facts['files'], 'file')}"
    lines = [f"{facts['hours']:,.2f} hours in {amount}"]
    if facts["speakers"]:
        chapters = f", {format_count(facts['chapters'], 'chapter')}" if facts["chapters"] else ""
        lines.append(f"{format_count(facts['speakers'], 'speaker')}{f' ({sexes})' if sexes else ''}{chapters}")
    if facts["transcripts"]:
        lines.append(format_count(facts["transcripts"], "transcript"))
    most = max(facts["durations"].values(), default=0)
    edges = [*facts["durations"], "∞"]
    for index, count in enumerate(facts["durations"].values()):
        if count:
            lines.append(f"{edges[index]:>4} to {edges[index + 1]:>2} s {count:>12,}  {'█' * round(30 * count / most)}")
    return lines
