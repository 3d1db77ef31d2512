"""Locks that give one process at a time write access to a folder. A lock is released however the process ends.

The lock file is open for writing, because network file systems refuse locks on files that are open for reading only.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sjepa.errors import BusyError, UserError
from sjepa.files import LOCK, final_name, is_partial, refuse_file

URL = re.compile(r"\w{2,}:/")
TRIES = 3  # a process that only asks whether a lock is held takes it for a moment
_held: set[int] = set()  # open lock files of this process


def close_inherited() -> None:
    """Close the lock files in a forked worker process. Otherwise a worker that outlives its parent keeps the locks."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=close_inherited)


@contextmanager
def lock_folder(folder: Path, busy: str = "") -> Iterator[None]:
    """Lock a folder for writing. The folder is created if it does not exist, and removed if it stays empty.

    `busy` is the error message if another process holds the lock. Leftovers of killed processes are removed.
    """
    if URL.match(str(folder)):
        raise UserError(f"{folder} is a URL: write to a folder, then copy it there; reading works from a URL")
    refuse_file(folder)
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror})") from error
    try:
        with hold_lock(
            folder / LOCK, busy or f"another process writes to {folder}: wait for it, or choose another --out"
        ):
            yield
    finally:
        with suppress(OSError):  # the folder is not empty
            for path in new:
                path.rmdir()


@contextmanager
def lock_new_folder(folder: Path) -> Iterator[None]:
    """Lock a folder that is renamed into place when it is complete. The lock file is next to it."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    busy = f"another process writes {folder}: wait for it, or choose another folder"
    with hold_lock(sibling_lock(folder), busy, clean=False):
        yield


def sibling_lock(folder: Path) -> Path:
    """Return the lock file of a folder that does not exist yet."""
    return folder.with_name(f".{folder.name}{LOCK}")


@contextmanager
def hold_lock(file: Path, busy: str, clean: bool = True, wait: bool = False) -> Iterator[None]:
    """Hold a lock on a file, and delete the file at the end. With `wait`, wait until other processes release it.

    With `clean`, remove leftovers of killed processes in its folder first.
    """
    try:
        import fcntl
    except ImportError:
        warn(file, "this system has none")
        yield
        return
    tries = 0
    while True:
        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"cannot write to {file.parent} ({error.strerror})") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            os.close(handle)
            tries += 1
            if wait or tries < TRIES:
                time.sleep(0.1)
                continue
            raise BusyError(busy) from None
        except OSError as error:
            warn(file, str(error.strerror))
            locked = False
        with suppress(FileNotFoundError):
            # A process deletes the file when it ends. Then this lock is on a file that no other process can find.
            if os.path.samestat(os.fstat(handle), os.stat(file)):
                break
        os.close(handle)
    _held.add(handle)
    try:
        if locked and clean:
            remove_leftovers(file.parent)
        yield
    finally:
        file.unlink(missing_ok=True)
        _held.discard(handle)
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Return whether a process writes to a folder or creates it. Without file locks the answer is always False."""
    folder = folder.absolute()
    return is_held(folder / LOCK) or is_held(sibling_lock(folder))


def is_held(file: Path) -> bool:
    """Return whether a process holds the lock on a file."""
    try:
        import fcntl

        try:
            handle = os.open(file, os.O_RDWR)
        except PermissionError:  # of another user
            handle = os.open(file, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def warn(file: Path, reason: str) -> None:
    """Warn that nothing prevents a second process from writing."""
    print(f"{file.parent}: no file locks ({reason}); let only one command at a time write there", file=sys.stderr)


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of killed processes, except where another process may be writing."""
    for where, folders, files in os.walk(folder):
        if Path(where) != folder and LOCK in files:
            folders.clear()
            continue
        for name in list(folders):
            final = final_name(name)
            if final is not None:
                folders.remove(name)
                if not is_held(sibling_lock(Path(where, final))):
                    shutil.rmtree(os.path.join(where, name), ignore_errors=True)
        for name in files:
            if is_partial(name):
                Path(where, name).unlink(missing_ok=True)
