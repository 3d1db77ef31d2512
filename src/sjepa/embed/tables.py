"""Write tables of any length to npz, safetensors or Parquet, piece by piece. A file appears when it is complete."""

import json
import shutil
import struct
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from sjepa.errors import UserError
from sjepa.files import atomic_file, scratch_folder

Format = Literal["npz", "safetensors", "parquet"]
SAFETENSORS_TYPES = {"float32": "F32", "float64": "F64", "int32": "I32"}
COPY_BYTES = 1 << 22


@dataclass
class Column:
    """A column that is written to a temporary file, piece by piece."""

    file: IO[bytes]
    dtype: np.dtype
    row_shape: tuple[int, ...]
    rows: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.row_shape)

    def append(self, values: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(values).data)
        self.rows += len(values)


def write_table(path: Path, kind: Format, pieces: Iterable[dict[str, np.ndarray]], about: dict[str, str]) -> int:
    """Write columns that arrive in pieces, with metadata. Returns the number of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_file(path) as partial:
            if kind == "parquet":
                return write_parquet(partial, pieces, about)
            return write_columns(partial, kind, pieces, about)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def write_parquet(path: Path, pieces: Iterable[dict[str, np.ndarray]], about: dict[str, str]) -> int:
    """Write one row group per piece. Vectors are lists of fixed size; `file` names the recording in every row."""
    import pyarrow
    import pyarrow.parquet

    writer, rows = None, 0
    with ExitStack() as opened:
        for piece in pieces:
            count = len(next(iter(piece.values())))
            columns = {name: to_arrow(values) for name, values in piece.items()}
            columns["file"] = pyarrow.array([about["file"]] * count).dictionary_encode()
            table = pyarrow.table(columns).replace_schema_metadata(about)
            # Features hardly ever repeat, so a dictionary of them would only make the file larger.
            if writer is None:
                file = opened.enter_context(path.open("wb"))  # pyarrow opens only paths in UTF-8
                chosen = pyarrow.parquet.ParquetWriter(file, table.schema, use_dictionary=["file"])
                writer = opened.enter_context(chosen)
            writer.write_table(table)
            rows += count
    return rows


def to_arrow(values: np.ndarray) -> Any:
    import pyarrow

    if values.ndim == 1:
        return pyarrow.array(values)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), values.shape[1])


def write_columns(path: Path, kind: Format, pieces: Iterable[dict[str, np.ndarray]], about: dict[str, str]) -> int:
    """Write npz or safetensors. Both state the size of an array before its data, so columns go to temporary files."""
    columns: dict[str, Column] = {}
    with scratch_folder(path.parent) as folder, ExitStack() as opened:
        for piece in pieces:
            for name, values in piece.items():
                if name not in columns:
                    file = opened.enter_context((folder / name).open("w+b"))
                    columns[name] = Column(file, values.dtype, values.shape[1:])
                columns[name].append(values)
        for column in columns.values():
            column.file.seek(0)
        (write_npz if kind == "npz" else write_safetensors)(path, columns, about)
    return next((column.rows for column in columns.values()), 0)


def write_npz(path: Path, columns: dict[str, Column], about: dict[str, str]) -> None:
    """Write a zip of .npy entries, as numpy.load reads it. The metadata are a JSON string in the entry `about`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                header = {"descr": column.dtype.str, "fortran_order": False, "shape": column.shape}
                np.lib.format.write_array_header_2_0(entry, header)
                shutil.copyfileobj(column.file, entry, COPY_BYTES)
        with archive.open("about.npy", "w") as entry:
            np.lib.format.write_array(entry, np.array(json.dumps(about, ensure_ascii=False)))


def write_safetensors(path: Path, columns: dict[str, Column], about: dict[str, str]) -> None:
    """Write the layout of safetensors: the length of the header, a JSON header, then the arrays."""
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    # The widest type first, because the format aligns every array to its type.
    ordered = sorted(columns.items(), key=lambda item: -item[1].dtype.itemsize)
    for name, column in ordered:
        begin, end = end, end + int(np.prod(column.shape)) * column.dtype.itemsize
        kind = SAFETENSORS_TYPES[column.dtype.name]
        header[name] = {"dtype": kind, "shape": list(column.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, column in ordered:
            shutil.copyfileobj(column.file, out, COPY_BYTES)


def read_metadata(path: Path, kind: Format) -> dict[str, str]:
    """Return the metadata of a table, or an empty dict if `write_table` did not write the file."""
    import safetensors

    read = {"npz": read_npz_metadata, "safetensors": read_safetensors_metadata, "parquet": read_parquet_metadata}[kind]
    try:
        found = read(path) if path.is_file() else None  # reading a pipe would never end
    except (OSError, KeyError, ValueError, RecursionError, zipfile.BadZipFile, safetensors.SafetensorError):
        return {}
    return found if isinstance(found, dict) else {}


def read_npz_metadata(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive, archive.open("about.npy") as entry:
        return json.loads(str(np.lib.format.read_array(entry)))


def read_safetensors_metadata(path: Path) -> Any:
    import safetensors

    with safetensors.safe_open(path, "numpy") as file:
        return file.metadata()


def read_parquet_metadata(path: Path) -> Any:
    import pyarrow.parquet

    with path.open("rb") as file:
        found = pyarrow.parquet.read_schema(file).metadata or {}
    return {name.decode(): value.decode() for name, value in found.items()}
