"""Write files and folders atomically, escape names, read text and JSON, and check paths."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sjepa.errors import UserError

if TYPE_CHECKING:  # commands that need no torch do without it
    from torch import Tensor


LOCK = ".sjepa.lock"  # in a folder that a process writes to; see locks.py
LONE_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that do not encode a byte of a file name
PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial", re.DOTALL)


def partial_name(name: str) -> str:
    """Return a unique temporary name, so that two processes never write to the same one."""
    return f".{name}.{secrets.token_hex(4)}.partial"


def final_name(name: str) -> str | None:
    """Return the name for which `partial_name` made a temporary name, or None if the name is not temporary."""
    found = PARTIAL.fullmatch(name)
    return found and found[1]


def is_partial(name: str) -> bool:
    """Return whether a name is temporary. Such a file is being written, or a killed process left it."""
    return final_name(name) is not None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. It becomes `path` when the block ends; an error removes it.

    An error about the temporary path names `path` instead, which is the file that the user knows.
    """
    partial = path.with_name(partial_name(path.name[:40]))  # short: names have at most 255 bytes
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        if str(error.filename) == str(partial):
            error.filename = str(path)
        raise
    finally:
        with suppress(PermissionError):  # then it could not be written either
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(
    folder: Path,
    existing: Literal["refuse", "replace", "merge"] = "refuse",
    outdated: Iterable[str] = (),
    last: Iterable[str] = (),
) -> Iterator[Path]:
    """Yield a temporary folder to write into. It becomes `folder` when the block ends; an error removes it.

    `existing` says what to do with an existing folder: `refuse` accepts only an empty one, `replace` removes it, and
    `merge` replaces files of the same name, deletes `outdated` files and keeps the others. It deletes the files that
    `last` names before all others and writes them after all others, so that a kill leaves no mixture that loads. Hold a
    lock if other processes may write the folder.
    """
    folder = folder.absolute()
    for path in folder.parent.iterdir() if folder.parent.is_dir() else ():
        if final_name(path.name) == folder.name:  # a killed process left it
            shutil.rmtree(path, ignore_errors=True)
    partial = folder.with_name(partial_name(folder.name))
    try:
        partial.mkdir(parents=True)
        yield partial
        for path in partial.rglob("*"):
            if path.is_file():
                flush(path)
        if existing == "merge" and folder.exists():
            for name in (*last, *(name for name in outdated if not (partial / name).exists())):
                (folder / name).unlink(missing_ok=True)
            for path in sorted(partial.iterdir(), key=lambda path: (path.name in last, path.name)):
                os.replace(path, folder / path.name)
        else:
            if existing == "replace":
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.exists():
                folder.rmdir()
            os.replace(partial, folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder for intermediate files inside `parent`. It is removed when the block ends."""
    folder = parent / partial_name("scratch")
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def flush(path: Path) -> None:
    """Flush a file or folder to disk, before it is renamed. Windows does not support this."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def escape_text(text: str) -> str:
    """Return text that UTF-8 can encode: anything else, such as half a surrogate pair in JSON, is escaped."""
    encoded = text.encode(errors="backslashreplace" if LONE_SURROGATES.search(text) else "surrogateescape")
    return encoded.decode(errors="backslashreplace")


def dump_json(value: Any, **options: Any) -> str:
    """Return JSON with readable letters. A byte of a file name that is not UTF-8 is escaped; reading restores it."""
    return json.dumps(value, ensure_ascii=False, **options).encode(errors="backslashreplace").decode()


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically: a kill or a full disk never leaves half a file. See `escape_text`."""
    with atomic_file(path) as partial:
        partial.write_text(escape_text(text), encoding="utf-8")


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark. Raise UserError for any other encoding."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty dict if the file holds something else."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file")  # reading a pipe would never end
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested thousands deep
        raise UserError(f"{path} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically, with the permissions of the umask. (The library allows only the owner.)"""
    import safetensors
    import safetensors.torch

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as partial:
        partial.touch()
        mode = partial.stat().st_mode
        try:
            safetensors.torch.save_file(plain, partial, metadata=metadata)
        except safetensors.SafetensorError as error:  # for example a full disk; the library does not name the file
            raise OSError(errno.EIO, str(error), str(path)) from error
        partial.chmod(mode)


def refuse_unreadable_weights(folder: Path) -> None:
    """Raise UserError for a folder of weights whose path is not UTF-8. safetensors would write it, but not read it."""
    path = str(folder.absolute())
    if escape_text(path) != path:
        raise UserError(f"{escape_text(path)} is not a name in UTF-8: weights in it could not be read; choose another")


def refuse_below_file(path: Path) -> None:
    """Raise UserError if a parent of the path is a file."""
    nearest = next((parent for parent in path.parents if parent.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise UserError(f"{nearest} is a file: nothing can be written below it")


def is_used(folder: Path) -> bool:
    """Return whether an output folder is not empty. Raise UserError if it is a file."""
    refuse_file(folder)
    return bool(contents(folder))


def contents(folder: Path) -> list[Path]:
    """List a folder, without its lock file and leftovers of killed processes. Empty if the folder does not exist."""
    found = sorted(folder.iterdir()) if folder.exists() else []
    return [path for path in found if path.name != LOCK and not is_partial(path.name)]


def require_folder(folder: Path) -> None:
    """Raise UserError if an input folder does not exist."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")


def refuse_file(folder: Path) -> None:
    """Raise UserError if an output folder is a file."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder")


def refuse_folder(path: Path) -> None:
    """Raise UserError if an output file is a folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give a file")
