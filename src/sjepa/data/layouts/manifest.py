"""Lists of utterances: JSONL manifests of NeMo and Granary, plain or tarred, and JSONL, CSV or Parquet lists."""

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from sjepa.audio.io import one_line, show_path
from sjepa.data.arrow import import_arrow
from sjepa.data.corpus import audio_files
from sjepa.data.layouts import Found, Item, Source, identifier, is_possible
from sjepa.data.layouts.fields import NAMES, add_labels, field, text_field
from sjepa.data.layouts.tars import members
from sjepa.data.storage import ByteRange, is_url
from sjepa.errors import UserError
from sjepa.files import escape_text

NAME = "manifest.jsonl"  # a list in the folder of its audio
LABELS_FILE = "labels.jsonl"  # such a list with labels for evaluation: `evaluate/labelled.py` describes its fields


def recognises(path: str) -> bool:
    return not os.path.isdir(path) or has_list(path)


def has_list(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, NAME))


def items(source: Source) -> Found:
    """The items of a list. In a folder with a list, audio that the list does not name is refused."""
    if not has_list(source.path):
        yield from (item for item, _ in read(source.path, source.root))
        return
    named: set[str] = set()
    for item, line in read(os.path.join(source.path, NAME), source.root):
        path = field(line, "path")
        if isinstance(path, str):
            named.add(os.path.join(source.path, path))
        yield item
    yield from refuse_others(source.path, named, f"{NAME} does not name it")


def refuse_others(folder: str, named: set[str], reason: str) -> Found:
    """Refuse the audio in a folder that its lists do not name."""
    refused: list[str] = []
    used = {os.path.normpath(path) for path in named}
    others = [path for path in audio_files(Path(folder), refused) if path not in used]
    if others:  # the lists may name them by other paths, for instance if the folder is a symbolic link
        used = {os.path.realpath(path) for path in named}
    for path in others:
        if os.path.realpath(path) not in used:
            yield f"{show_path(path)}: {reason}"
    yield from refused


def read(source: str, root: str = "") -> Iterator[tuple[Item | str, dict[str, Any]]]:
    """The item of each line of a list, or why the line is refused, and the line itself.

    Ids that the list does not give are paths below the root, or below the folder of the list.
    """
    root = root or os.path.dirname(os.path.abspath(source))
    for number, line in lines(source):
        if isinstance(line, str):
            yield f"{show_path(source)} line {number}: {line}", {}
        else:
            yield make_item(line, source, number, root), line


def lines(source: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Numbered lines as dictionaries, or the reason why a line cannot be read."""
    try:
        yield from parse_lines(source)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{source} cannot be decompressed ({one_line(error)})") from None


def parse_lines(source: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    ending = Path(source.removesuffix(".gz")).suffix.lower()
    if ending in (".jsonl", ".json"):
        with open_text(source) as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield number, parse_object(text)
    elif ending in (".csv", ".tsv"):
        with open_text(source, newline="") as file:
            yield from enumerate(table_lines(csv.DictReader(file, delimiter="\t" if ending == ".tsv" else ",")), 2)
    elif ending == ".parquet":
        yield from enumerate(parquet_lines(source), 1)
    else:
        raise UserError(f"{source} is not a list: use .jsonl, .json, .csv, .tsv or .parquet, or a .tar of audio")


def table_lines(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any] | str]:
    """Lines of a CSV file, or why one cannot be read: a field that is too long, or a zero byte."""
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"not valid CSV ({one_line(error)})"


def open_text(source: str, newline: str | None = None) -> IO[str]:
    """Open a list as text, with or without gzip. Excel writes a byte-order mark before the first column."""
    opened = gzip.open if source.endswith(".gz") else open
    return cast(IO[str], opened(source, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=newline))


def parse_object(text: str) -> dict[str, Any] | str:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON ({one_line(error)})"
    return line if isinstance(line, dict) else "not a JSON object"


def parquet_lines(source: str) -> Iterator[dict[str, Any]]:
    parquet = import_arrow(source, "pyarrow.parquet")
    try:
        for batch in parquet.ParquetFile(source).iter_batches():
            yield from batch.to_pylist()
    except Exception as error:  # pyarrow's own errors are ValueErrors, and damage makes others
        raise UserError(f"{source}: cannot be read as Parquet ({one_line(error)})") from None


def make_item(line: dict[str, Any], source: str, number: int, root: str) -> Item | str:
    where = f"{show_path(source)} line {number}"
    path = field(line, "path")
    if not isinstance(path, str):
        return f"{where}: no audio is named ({', '.join(NAMES['path'][:3])})"
    stretch = read_stretch(line)
    if isinstance(stretch, str):
        return f"{where}: {stretch}"
    offset, duration = stretch
    place = tar_place(line["shard_id"], path, source) if "shard_id" in line else local_place(path, source)
    if isinstance(place, str):
        return f"{where}: {place}"
    name = text_field(line, "id") or default_id(path, place, offset, root)
    return add_labels(Item(place, name, offset, duration), line)


def default_id(path: str, place: ByteRange, offset: float, root: str) -> str:
    """An id for a line without one: the path of its audio below the root of all sources."""
    name = os.path.splitext(path)[0]
    if place.size:  # a member of a tar
        name = f"{identifier(place.path, root)}/{name}"
    elif not is_url(path):
        name = identifier(place.path, root)
    return escape_text(f"{name}@{offset:g}" if offset else name)


def read_stretch(line: dict[str, Any]) -> tuple[float, float | None] | str:
    """The offset and duration of a line in seconds, or why they are refused."""
    try:
        offset = float(field(line, "offset") or 0.0)
        duration = None if field(line, "duration") is None else float(field(line, "duration"))
    except (TypeError, ValueError, OverflowError):
        return "offset or duration is not a number"
    if not is_possible(offset, duration):
        rule = "the offset must not be negative, and the duration must be above 0"
        return f"offset {offset} s, duration {duration} s: {rule}"
    return offset, duration


def local_place(path: str, source: str) -> ByteRange:
    """Resolve a path from the folder of the list."""
    return ByteRange(path if is_url(path) else os.path.join(os.path.dirname(os.path.abspath(source)), path))


def tar_place(shard: Any, name: str, source: str) -> ByteRange | str:
    """A member of a NeMo tar: audio_SHARD.tar next to the manifest, or next to its folder sharded_manifests."""
    folder = Path(os.path.abspath(source)).parent
    name_of_tar = f"audio_{shard}.tar"
    tar = next((f / name_of_tar for f in (folder, folder.parent) if os.path.isfile(f / name_of_tar)), None)
    if tar is None:
        return f"there is no {escape_text(name_of_tar)} in {show_path(folder)} or the folder above"
    places = tar_members(str(tar))
    # Several stretches of one recording share a member; from the second on their names end in -subN.
    place = places.get(name) or places.get(re.sub(r"-sub\d+(?=\.[^.]*$)", "", name))
    return place or f"{show_path(tar)} has no member {show_path(name)}"


@lru_cache(maxsize=2)
def tar_members(tar: str) -> dict[str, ByteRange]:
    return dict(member for member in members(tar) if not isinstance(member, str))
