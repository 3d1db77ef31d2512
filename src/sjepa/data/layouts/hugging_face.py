"""Hugging Face datasets on disk: Arrow files of `save_to_disk`, and Parquet files with audio in them.

Audio in an Arrow file is read in place. Parquet compresses it, so its bytes are first written to a plain file: next
to the new index, or in the user's cache.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sjepa.audio.io import one_line, show_path
from sjepa.data.arrow import import_arrow
from sjepa.data.index import report_write_errors
from sjepa.data.layouts import Found, Item, Source, find_file, identifier
from sjepa.data.layouts.fields import add_labels, text_field
from sjepa.data.storage import ByteRange
from sjepa.fields import SURPRISES
from sjepa.files import atomic_file, escape_text

DISK, DICTIONARY, PARQUET = "dataset_info.json", "dataset_dict.json", ".parquet"
SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}")


def recognises(path: str) -> bool:
    if os.path.isdir(path):
        saved = any(os.path.isfile(os.path.join(path, name)) for name in (DICTIONARY, "state.json"))
        files = table_files(path)
        return (saved and bool(files)) or any(holds_audio(file) for _, file in files[:1])
    return path.endswith((".arrow", PARQUET)) and holds_audio(path)


def table_files(path: str) -> list[tuple[str, str]]:
    """Split and path of each file: of one dataset, of one folder per split, or of Parquet shards."""
    folder = Path(path)
    arrow = [("", file) for file in sorted(folder.glob("data-*.arrow"))]
    arrow += [(file.parent.name, file) for file in sorted(folder.glob("*/data-*.arrow"))]
    parquet = [*sorted(folder.glob(f"*{PARQUET}")), *sorted(folder.glob(f"*/*{PARQUET}"))]
    return [(split, str(file)) for split, file in arrow or [(parquet_split(file), file) for file in parquet]]


def parquet_split(file: Path) -> str:
    """`train-00000-of-00002.parquet`, or `train/0000.parquet`."""
    match = SHARD.fullmatch(file.stem)
    return match[1] if match else file.parent.name if file.stem.isdigit() else ""


def holds_audio(file: str) -> bool:
    """Whether a table has a column of audio: bytes and paths."""
    try:
        if file.endswith(PARQUET):
            schema = import_arrow(file, "pyarrow.parquet").read_schema(file)
        else:
            pa = import_arrow(file)
            with pa.memory_map(file) as opened:
                schema = import_arrow(file, "pyarrow.ipc").open_stream(opened).schema
    except (ValueError, OSError):
        return False
    return audio_column(schema) is not None


def audio_column(schema: Any) -> str | None:
    """The first column whose values have bytes and a path."""
    for field in schema:
        kind = field.type
        names = {kind.field(i).name for i in range(kind.num_fields)} if str(kind).startswith("struct") else set()
        if {"bytes", "path"} <= names:
            return str(field.name)
    return None


def items(source: Source) -> Found:
    named = parquet_split(Path(source.path)) if source.path.endswith(PARQUET) else ""
    for split, file in table_files(source.path) if os.path.isdir(source.path) else [(named, source.path)]:
        try:
            yield from read_table(split, file, source)
        except (ValueError, OSError) as error:  # pyarrow's own errors are ValueErrors
            yield f"{show_path(file)}: cannot be read as a table ({one_line(error)})"


def read_table(split: str, file: str, source: Source) -> Found:
    """Items of one file. Ids come from a column, the name of the audio, or the file and row."""
    pa, packed = import_arrow(file), file.endswith(PARQUET)
    opened = pa.memory_map(file)
    whole = opened.read_buffer()
    if packed:
        table = import_arrow(file, "pyarrow.parquet").ParquetFile(file)
        schema, batches = table.schema_arrow, table.iter_batches(batch_size=64)
    else:
        reader = import_arrow(file, "pyarrow.ipc").open_stream(whole)
        schema, batches = reader.schema, reader
    column = audio_column(schema)
    if column is None:
        yield f"{show_path(file)}: no column holds audio (bytes and path)"
        return
    names = class_names(schema, file)
    unpacked = unpack(file, column, source.unpacked) if packed else None
    row, written = 0, 0
    for batch in batches:
        audio = batch.column(column)
        content, paths = audio.field("bytes"), audio.field("path").to_pylist()
        where = None if packed else addresses(content, whole)
        others = batch.select([name for name in batch.schema.names if name != column]).to_pylist()
        for index, line in enumerate(others):
            size = len(content[index].as_buffer()) if content[index].is_valid else 0
            if size and unpacked is not None:
                place: ByteRange | None = ByteRange(str(unpacked), written, size)
                written += size
            elif size and where is not None:
                place = ByteRange(file, where[index], size)
            else:
                found = find_file(paths[index], os.path.dirname(file)) if paths[index] else None
                place = ByteRange(found) if found else None
            if place is None:
                missing = f"no audio ({show_path(paths[index]) if paths[index] else 'neither bytes nor a path'})"
                packed_away = "its audio is compressed: save the dataset without compression, or as Parquet"
                yield f"{show_path(file)} row {row}: {packed_away if size else missing}"
            else:
                yield make_item(line, names, place, default_name(paths[index], file, row, source), split)
            row += 1


def default_name(path: str | None, file: str, row: int, source: Source) -> str:
    """An id for a row without one. The row number is unique; names of files need not be."""
    base = identifier(file, source.root)
    stem = os.path.splitext(os.path.basename(path))[0] if path else ""
    return f"{base}/{row:06d}-{stem}" if stem else f"{base}/{row:06d}"


def make_item(line: dict[str, Any], names: dict[str, list[str]], place: ByteRange, name: str, split: str) -> Item:
    """A row as an item, with class names."""
    named = {
        key: names[key][value] if key in names and isinstance(value, int) and 0 <= value < len(names[key]) else value
        for key, value in line.items()
    }
    item = add_labels(Item(place, text_field(named, "id") or escape_text(name)), named)
    return item._replace(split=item.split or split)


def class_names(schema: Any, file: str) -> dict[str, list[str]]:
    """Class names of columns that hold class numbers."""
    features = {}
    metadata = (schema.metadata or {}).get(b"huggingface")
    dataset_info = Path(file).parent / DISK
    try:
        if metadata:
            features = json.loads(metadata)["info"]["features"]
        elif dataset_info.is_file():
            features = json.loads(dataset_info.read_text(encoding="utf-8"))["features"]
        return {
            name: [str(label) for label in kind["names"]]
            for name, kind in features.items()
            if isinstance(kind, dict) and kind.get("_type") == "ClassLabel" and kind.get("names")
        }
    except SURPRISES:  # the numbers of classes are labels too
        return {}


def addresses(content: Any, whole: Any) -> list[int] | None:
    """Where each value of a column of bytes starts in the mapped file; None if the file is compressed."""
    buffers = content.buffers()
    if len(buffers) < 3 or buffers[2] is None:
        return None
    bounds, data = buffers[1:]
    first = data.address - whole.address
    if not 0 <= first < whole.size:
        return None
    width = 8 if str(content.type).startswith("large") else 4
    numbers = memoryview(bounds).cast("b").cast("q" if width == 8 else "i")
    return [first + numbers[content.offset + index] for index in range(len(content))]


def unpack(file: str, column: str, folder: Path) -> Path:
    """Write all audio of a Parquet file to one plain file, once."""
    status = os.stat(file)
    key = hashlib.sha256(f"{os.path.abspath(file)} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    target = folder / f"{Path(file).stem}-{key}.audio"
    if not target.exists():
        with report_write_errors(folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target) as partial, partial.open("wb") as out:
                for content in audio_bytes(file, column):
                    out.write(content)
    return target


def audio_bytes(file: str, column: str) -> Iterator[Any]:
    """The bytes of all audio in a Parquet file. Errors of reading are ValueErrors, unlike those of writing."""
    try:
        table = import_arrow(file, "pyarrow.parquet").ParquetFile(file)
        for batch in table.iter_batches(batch_size=64, columns=[column]):
            for value in batch.column(column).field("bytes"):
                if value.is_valid:
                    yield value.as_buffer()
    except OSError as error:
        raise ValueError(one_line(error)) from error
