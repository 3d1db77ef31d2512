"""Cache whole shards on a node's local disk, for all processes of the node.

A shard that is not cached is read from its URL by ranges while a thread downloads it. Files appear when they
are complete. Locks end with their process, so a kill leaves nothing that another process waits for.
"""

import errno
import hashlib
import os
import queue
import shutil
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from sjepa.audio.io import one_line
from sjepa.data.storage import download, file_size
from sjepa.errors import BusyError, UserError
from sjepa.files import atomic_file, final_name, flush, is_partial
from sjepa.locks import hold_lock

SLOTS = 4  # concurrent downloads per node
IDLE = 3600.0  # seconds without use after which a shard may be removed. Training reads all its shards in turn, so
# removing one that is in use to make room for another would only download both again.
TOUCHED = 60.0  # seconds between updates of a shard's last use
REST = 60.0  # seconds after which a full cache is tried again
SPARE = 0.05  # share of the disk that stays free for others
ENDING = ".shard"
FULL = "the disk is full"
REPORTED = "full"  # a marker file, so that only one process of the node reports a full disk


class NoRoomError(Exception):
    """There is no room for a shard. The message gives the reason."""


class ShardCache:
    """A folder on a node's local disk, and the largest size of its shards in bytes."""

    def __init__(self, folder: Path, limit: int):
        self.folder, self.limit = folder, limit
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"batches.shard_cache: cannot make {folder} ({error.strerror})") from error
        self.process = 0
        self.reported = False

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardCache, (self.folder, self.limit)

    def find(self, url: str, identity: str) -> str:
        """The local path of a shard, or its URL if it is not cached. `identity` is the fingerprint of the corpus."""
        path = self.folder / (hashlib.sha256(f"{url} {identity}".encode()).hexdigest()[:24] + ENDING)
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > TOUCHED:
                os.utime(path)
            return str(path)
        self.want(url, path)
        return url

    def want(self, url: str, path: Path) -> None:
        """Download a shard in the background, one at a time in this process."""
        if self.process != os.getpid():  # threads do not survive a fork
            self.process, self.wanted, self.rests_until = os.getpid(), queue.SimpleQueue[tuple[str, Path]](), 0.0
            self.names: set[str] = set()
            threading.Thread(target=self.work, name="shards", daemon=True).start()
        if path.name not in self.names and time.monotonic() > self.rests_until:
            self.names.add(path.name)
            self.wanted.put((url, path))

    def work(self) -> None:
        while True:
            url, path = self.wanted.get()
            if time.monotonic() > self.rests_until:
                self.try_to_keep(url, path)
            self.names.discard(path.name)

    def try_to_keep(self, url: str, path: Path) -> None:
        """Download a shard, unless another process does or there is no room. On failure it is read from its URL."""
        try:
            self.keep(url, path)
        except NoRoomError as error:
            self.rests_until = time.monotonic() + REST
            if str(error):
                self.report(str(error))
        except OSError as error:
            self.rests_until = time.monotonic() + REST
            self.report(error.strerror or one_line(error))
        except UserError:  # the server failed, which reading will report
            self.rests_until = time.monotonic() + REST

    def keep(self, url: str, path: Path) -> None:
        with ExitStack() as held:
            if not self.take_slot(held) or not try_lock(held, lock_file(path)) or path.exists():
                return
            size = file_size(url)
            if size is None:
                return
            with atomic_file(path) as partial:
                self.reserve(partial, size)
                download(url, partial, size)
                if partial.stat().st_size != size:
                    raise UserError(f"{url} changed its size while it was downloaded")
                flush(partial)
            (self.folder / REPORTED).unlink(missing_ok=True)
            self.reported = False

    def take_slot(self, held: ExitStack) -> bool:
        return any(try_lock(held, self.folder / f"slot-{number}.lock") for number in range(SLOTS))

    def reserve(self, partial: Path, size: int) -> None:
        """Make room: remove leftovers of killed processes, then the least recently used shards. Others wait here."""
        with hold_lock(self.folder / "room.lock", "", clean=False, wait=True):
            self.remove_leftovers(partial)
            files = self.find_files()
            shards = sorted((status.st_mtime, status.st_size, path) for status, path in files if path.suffix == ENDING)
            used = sum(status.st_size for status, _ in files)
            disk = shutil.disk_usage(self.folder)
            free = disk.free - int(SPARE * disk.total)
            for used_at, freed, path in shards:
                if (used + size <= self.limit and size <= free) or time.time() - used_at < IDLE:
                    break
                path.unlink(missing_ok=True)
                used, free = used - freed, free + freed
            if size > self.limit:
                raise NoRoomError(f"a shard has {size / 1e9:.1f} GB, more than batches.shard_cache_gb")
            if size > free:
                raise NoRoomError(FULL)
            if used + size > self.limit:
                raise NoRoomError
            allocate(partial, size)

    def find_files(self) -> list[tuple[os.stat_result, Path]]:
        """Shards and partial files. Other processes may rename or remove some meanwhile."""
        files = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(ENDING) or is_partial(entry.name):
                with suppress(FileNotFoundError):
                    files.append((entry.stat(), Path(entry.path)))
        return files

    def remove_leftovers(self, partial: Path) -> None:
        """Remove partial files of processes that are gone: all of this shard, and of others whose lock is free."""
        for path in self.folder.iterdir():
            shard = final_name(path.name)
            if shard is not None:
                with ExitStack() as held:
                    if shard == final_name(partial.name) or try_lock(held, lock_file(self.folder / shard)):
                        path.unlink(missing_ok=True)

    def report(self, reason: str) -> None:
        """Report once per node that shards are not cached, or once per process if the folder cannot be written."""
        if self.reported:
            return
        self.reported = True
        try:
            os.close(os.open(self.folder / REPORTED, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        except OSError:
            pass
        line = f"{self.folder}: shards cannot be kept there ({reason}); training reads them from their URLs"
        print(f"sjepa: {line}", file=sys.stderr, flush=True)


def allocate(path: Path, size: int) -> None:
    """Make a file that occupies its space on the disk, so that other processes find less of it free."""
    with path.open("wb") as file:
        file.truncate(size)
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except AttributeError:  # macOS has no such function
            pass
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise NoRoomError(FULL) from None
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # file systems that cannot reserve space
                raise


def lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix(ENDING)}.lock")


def try_lock(held: ExitStack, lock: Path) -> bool:
    """Take a lock, unless another process has it. Raise NoRoomError if the lock file cannot be written."""
    try:
        held.enter_context(hold_lock(lock, "busy", clean=False))
    except BusyError:
        return False
    except UserError as error:
        raise NoRoomError(str(error)) from error
    return True
