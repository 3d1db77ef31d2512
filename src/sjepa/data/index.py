"""The index of a corpus: memory-mapped columns, so that 25 million utterances open quickly. See `index_folder`."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from sjepa.audio.io import SAMPLE_RATE, BadAudioError, one_line, show_path
from sjepa.data.arrow import import_arrow
from sjepa.data.corpus import Corpus
from sjepa.data.distinct_ids import DistinctIds, hash_id
from sjepa.data.index_folder import FORMAT, IndexFolder
from sjepa.data.layouts import cache_folder
from sjepa.data.storage import download, file_size, is_url
from sjepa.errors import UserError
from sjepa.files import atomic_file, escape_text, flush, write_whole
from sjepa.locks import hold_lock

AUDIO = {"file": "int32", "byte_offset": "int64", "byte_size": "int64", "start": "int64", "length": "int32"}
LABELS = ("id", "speaker", "sex", "chapter", "text")
OPTIONAL = ("split", "labels")  # columns that an index has only if some utterance has a value
BLOCK = 16  # neighbours in a shard that a batch reads together


class Row(NamedTuple):
    """An utterance; samples count at 16 kHz."""

    path: str
    byte_offset: int
    byte_size: int
    start: int
    length: int
    id: str
    speaker: str = ""
    sex: str = ""
    chapter: str = ""
    text: str = ""
    split: str = ""
    labels: str = ""


def import_ipc() -> Any:
    """Return pyarrow, with its module that reads and writes the files of an index."""
    import_arrow("an index", "pyarrow.ipc")
    return import_arrow("an index")


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Report a full disk, missing permission or a path that is not a folder in one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror or one_line(error)})") from error


def write_part(path: Path, rows: list[Row], refused: list[str]) -> None:
    """Write a piece of an index atomically."""
    pa = import_ipc()
    paths = pa.array([os.fsencode(row.path) for row in rows], pa.binary()).dictionary_encode()
    columns = {"path": paths}
    columns |= {name: pa.array([getattr(row, name) for row in rows], AUDIO[name]) for name in AUDIO if name != "file"}
    columns |= {name: pa.array([getattr(row, name) for row in rows], pa.string()) for name in LABELS + OPTIONAL}
    columns |= {"key": pa.array([hash_id(row.id) for row in rows], pa.uint64())}
    table = pa.table(columns).replace_schema_metadata({"refused": json.dumps(refused)})
    with (
        atomic_file(path) as partial,
        pa.OSFile(os.fsencode(partial), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def read_table(path: Path) -> Any:
    """A memory-mapped table."""
    pa = import_ipc()
    try:
        return pa.ipc.open_file(pa.memory_map(os.fsencode(path))).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is missing or damaged ({one_line(error)}): rebuild the index") from None


def merge_parts(index: IndexFolder, parts: list[Path], facts: dict[str, Any]) -> dict[str, Any]:
    """Merge the parts into an index and return the contents of index.json.

    An utterance with a repeated id gets a new id, or is refused if its audio is the same too. Parts are read one at a
    time, so only the labels of one part are in memory.
    """
    pa = import_ipc()
    keys, folders, refused, optional = survey_parts(parts)
    named = [*LABELS, *(name for name in OPTIONAL if name in optional)]
    if not len(keys):
        shutil.rmtree(index.parts)  # so that the next call reads repaired files again
        raise UserError(f"no usable audio: {refused[0] if refused else 'the sources hold none'}")
    distinct = DistinctIds(keys)
    root = facts.get("root") or (os.path.commonpath(sorted(folders)) if folders else "/")
    digest = hashlib.sha256()
    numbers: dict[str, list[np.ndarray]] = {name: [] for name in AUDIO}
    files = 0
    with (
        pa.OSFile(os.fsencode(index.labels), "wb") as labels_sink,
        pa.OSFile(os.fsencode(index.files), "wb") as files_sink,
        pa.ipc.new_file(labels_sink, pa.schema([(name, pa.string()) for name in named])) as labels,
        pa.ipc.new_file(files_sink, pa.schema([("path", pa.binary())])) as paths,
    ):
        for table in map(read_table, parts):
            renamed, keep = distinct.resolve(table)
            again = table["id"].filter(pa.array(~keep)).to_pylist()
            refused += [f"{identifier}: an earlier utterance has the same id and audio" for identifier in again]
            if not len(table):
                continue
            encoded = table["path"].combine_chunks()
            names = [relative_path(root, os.fsdecode(path)) for path in encoded.dictionary.to_pylist()]
            digest.update(b"\0".join(map(os.fsencode, names)))
            numbers["file"].append(encoded.indices.to_numpy()[keep] + np.int32(files))
            for name in list(AUDIO)[1:]:
                numbers[name].append(table[name].to_numpy()[keep])
            paths.write_batch(pa.record_batch({"path": pa.array(map(os.fsencode, names), pa.binary())}))
            files += len(names)
            if renamed:
                ids = [renamed.get(row, identifier) for row, identifier in enumerate(table["id"].to_pylist())]
                table = table.set_column(table.column_names.index("id"), "id", pa.array(ids, pa.string()))
            labels.write_table(table.select(named).filter(pa.array(keep)).replace_schema_metadata(None))
    columns = {name: np.concatenate(arrays) for name, arrays in numbers.items()}
    batch = pa.record_batch({name: pa.array(column, AUDIO[name]) for name, column in columns.items()})
    with pa.OSFile(os.fsencode(index.audio), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    for column in columns.values():
        digest.update(np.ascontiguousarray(column).data)
    write_whole(index.refused, "".join(escape_text(line) + "\n" for line in refused))
    facts = {"format": FORMAT, "root": root, "fingerprint": digest.hexdigest()[:16]} | facts | {"files": files}
    facts |= summarise_lengths(columns["length"], read_table(index.labels)) | {"refused": len(refused)}
    # Last, because its presence makes the folder an index.
    write_whole(index.facts_file, json.dumps(facts, indent=1) + "\n")
    shutil.rmtree(index.parts, ignore_errors=True)
    return facts


def survey_parts(parts: list[Path]) -> tuple[np.ndarray, set[str], list[str], set[str]]:
    """Collect the keys of all ids, the folders of the files, the refusals, and the optional columns in use."""
    keys = [np.empty(0, dtype=np.uint64)]
    folders: set[str] = set()
    refused: list[str] = []
    optional: set[str] = set()
    for table in map(read_table, parts):
        optional |= {name for name in OPTIONAL if name in table.column_names and any(table[name].unique().to_pylist())}
        keys.append(table["key"].to_numpy().copy())
        paths = [os.fsdecode(path) for chunk in table["path"].chunks for path in chunk.dictionary.to_pylist()]
        folders |= {os.path.dirname(path) for path in paths if os.path.isabs(path)}
        refused += json.loads(table.schema.metadata[b"refused"])
    return np.concatenate(keys), folders, refused, optional


def relative_path(root: str, path: str) -> str:
    """Return a path below the root relative to it; URLs and all other paths stay as they are.

    `..` stays too: after a symbolic link, the path without it leads to another file.
    """
    if is_url(path):
        return path
    below = root.rstrip("/") + "/"
    if path.startswith(below):
        return path[len(below) :].lstrip("/")
    pure = PurePath(path)  # without `.` and `//`, as in the root
    return str(pure.relative_to(root)) if pure.is_relative_to(root) else path


def summarise_lengths(length: np.ndarray, labels: Any) -> dict[str, Any]:
    """Hours, speakers and durations for the summary."""
    pc = import_arrow("an index", "pyarrow.compute")
    counts = {name: labels[name].unique().to_pylist() for name in ("speaker", "sex", "chapter")}
    edges = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 15, 20, 30, 60]
    histogram = np.histogram((length - 1) / SAMPLE_RATE, [*edges, np.inf])[0]  # exactly 15 s counts as 15 s or less
    return {
        "utterances": len(length),
        "hours": float(length.sum(dtype=np.int64)) / SAMPLE_RATE / 3600,
        "speakers": sum(1 for value in counts["speaker"] if value),
        "sexes": {sex: count_speakers(pc, labels, sex) for sex in sorted(counts["sex"]) if sex},
        "chapters": sum(1 for value in counts["chapter"] if value),
        "transcripts": int(pc.sum(pc.greater(pc.utf8_length(labels["text"]), 0)).as_py() or 0),
        "durations": dict(zip(map(str, edges), histogram.tolist(), strict=True)),
    }


def count_speakers(pc: Any, labels: Any, sex: str) -> int:
    return len(labels["speaker"].filter(pc.equal(labels["sex"], sex)).unique())


class Paths(Sequence[str]):
    """Paths of files in an index, looked up on demand."""

    def __init__(self, root: str, column: Any, inside: bool):
        self.root, self.column, self.inside = root, column, inside

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: Any) -> Any:
        try:
            path = os.fsdecode(self.column[int(index)].as_py())
        except (IndexError, TypeError):
            raise BadAudioError(f"{self.root}: the index has no file {index}; rebuild it") from None
        if self.inside and (is_url(path) or path.startswith(("/", "\\")) or ".." in path.replace("\\", "/").split("/")):
            raise BadAudioError(f"{self.root}: {show_path(path)} is outside the folder")
        if is_url(path):
            return path
        return f"{self.root}/{path}" if is_url(self.root) else os.path.join(self.root, path)

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))


def open_index(where: str) -> Corpus:
    """Open an index or shards, in a folder or behind a URL."""
    index = IndexFolder(where)
    facts = index.facts()
    if is_url(where):
        index = fetch_columns(where, facts["fingerprint"], (index.audio.name, index.files.name))
    numbers, files = read_table(index.audio), read_table(index.files)
    kinds = {name: str(kind) for name, kind in zip(numbers.schema.names, numbers.schema.types, strict=True)}
    counted = (len(numbers), len(files)) == (facts["utterances"], facts["files"])
    if kinds != AUDIO or files.column_names != ["path"] or not counted or not len(numbers):
        raise UserError(f"{where}: {index.facts_file.name} and the columns disagree: rebuild the index")
    if numbers["length"].num_chunks != 1:
        raise UserError(f"{where}/{index.audio.name} has several chunks: rebuild the index")
    columns = {name: numbers[name].chunk(0).to_numpy() for name in AUDIO}  # one chunk: views of the mapped file
    if int(columns["length"].min()) < 1:  # the only column that is read whole when a corpus opens
        raise UserError(f"{where}/{index.audio.name} has utterances without samples: rebuild the index")
    shards = facts.get("shards", "")
    # Shards, and an index behind a URL, may only refer to files in their own folder.
    inside = bool(shards) or is_url(where)
    root = where.rstrip("/") if inside else os.path.join(where, facts["root"])
    return Corpus(
        Paths(root, files["path"], inside),
        **columns,
        raw=shards == "int16",
        block=BLOCK if shards else 1,
        identity=facts["fingerprint"],
        is_cut=True,
    )


def read_labels(where: str) -> Any:
    """Ids and labels of an index, as an Arrow table in the order of the utterances."""
    index = IndexFolder(where)
    facts = index.facts()
    if is_url(where):
        index = fetch_columns(where, facts["fingerprint"], (index.labels.name,))
    return read_table(index.labels)


def fetch_columns(url: str, fingerprint: str, names: Sequence[str]) -> IndexFolder:
    """Download columns of an index behind a URL to the user's cache, by one process per machine.

    Damaged files in the cache are replaced.
    """
    folder = cache_folder() / hashlib.sha256(f"{url} {fingerprint}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if is_table(folder / name):
            continue
        with hold_lock(folder / f"{name}.lock", "", clean=False, wait=True):
            if is_table(folder / name):
                continue
            source = f"{url.rstrip('/')}/{name}"
            try:
                with atomic_file(folder / name) as partial:
                    size = file_size(source)
                    download(source, partial, size)
                    if size is not None and partial.stat().st_size != size:
                        raise UserError(f"{source} changed its size while it was downloaded: try again")
                    if not is_table(partial):
                        raise UserError(f"{source} is damaged: rebuild the index")
                    flush(partial)
            except BadAudioError as error:
                raise UserError(str(error)) from None
    return IndexFolder(folder)


def is_table(path: Path) -> bool:
    """Whether a file exists and opens as a table."""
    try:
        read_table(path)
    except UserError:
        return False
    return True
