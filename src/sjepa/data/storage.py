"""Read the bytes of a file, or of a stretch of it, from a disk or a URL."""

import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sjepa.audio.io import BadAudioError, one_line, show_path
from sjepa.data.waiting import Wait, never_stopped
from sjepa.errors import UserError

TRIES = 5
CONNECT, STALL = 5.0, 10.0  # seconds that a server may take to accept a connection, and to send its next bytes
PART = 8 * 2**20  # bytes per request when a whole file is downloaded
DOWNLOADS = 4  # concurrent requests of a download
FINAL = frozenset(range(400, 500)) - {408, 429}  # responses that are not worth another try
failing_urls: set[str] = set()  # URLs that failed every try: until one succeeds they get one try and no waits
fetched_ahead = threading.local()  # .held: stretches of URLs that were fetched ahead, or why they failed


PROTOCOLS = frozenset({"http", "https", "s3"})
ALLOWED = "SJEPA_ALLOW_PROTOCOLS"  # set by --allow-protocols; worker processes inherit it


class UnreachableError(BadAudioError):
    """A URL did not answer. It may do so later."""


class DeniedError(UnreachableError):
    """A server denied access to a URL: to this one, or to all of them if credentials have expired."""


class CutShortError(BadAudioError):
    """A file has fewer bytes than its index says."""


class ByteRange(NamedTuple):
    """A stretch of a file."""

    path: str
    offset: int = 0
    size: int = 0  # 0: the whole file

    def holds(self, other: "ByteRange") -> bool:
        if self.path != other.path or not self.size or not other.size:
            return self == other
        return self.offset <= other.offset and other.offset + other.size <= self.offset + self.size


def is_url(path: str) -> bool:
    return "://" in path


def read_bytes(place: ByteRange) -> bytes:
    """Read the bytes of a place. A URL that fails is tried again."""
    if not is_url(place.path):
        content = read_local(place)
    else:
        for held, found in getattr(fetched_ahead, "held", []):
            if held.holds(place):
                if isinstance(found, BadAudioError):
                    raise found
                start = place.offset - held.offset
                return found[start : start + place.size] if place.size else found
        content = fetch(place)
    if len(content) < place.size:
        raise CutShortError(f"{show_path(place.path)}: cut short, it holds fewer bytes than its index says")
    return content


def check_protocol(url: str) -> None:
    """Refuse URLs whose protocol is not allowed, because lists and indexes may come from other people.

    fsspec knows many more, with which a list could read local files or chain one protocol to another.
    """
    protocol = url.partition("://")[0]
    allowed = PROTOCOLS | set(filter(None, os.environ.get(ALLOWED, "").split(",")))
    links = url.split("::")  # to fsspec, zip://a.wav::ftp://b.zip is a chain; its last link may be a local path
    named = {link.partition("://")[0] for place, link in enumerate(links, 1) if "://" in link or place < len(links)}
    if not named <= allowed:
        known = ", ".join(sorted(allowed))
        reason = f"only {known} and local paths are read; --allow-protocols adds others"
        raise BadAudioError(f"{show_path(url)}: cannot be opened: {reason}")
    try:
        whole = bool(urlsplit(url).netloc) or protocol not in PROTOCOLS
    except ValueError:
        whole = False
    if not whole:
        raise BadAudioError(f"{show_path(url)}: cannot be opened: not a URL")


def read_local(place: ByteRange) -> bytes:
    if os.path.exists(place.path) and not os.path.isfile(place.path):
        raise BadAudioError(f"{show_path(place.path)}: not a regular file")
    try:
        with open(place.path, "rb") as file:
            file.seek(place.offset)
            return file.read(place.size or -1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte, an offset below 0
        reason = getattr(error, "strerror", None) or one_line(error)
        raise BadAudioError(f"{show_path(place.path)}: cannot be read ({reason})") from error


def fetch(
    place: ByteRange,
    patience: float = 0.0,
    is_stopped: Callable[[], bool] = never_stopped,
    report: Callable[[str], None] | None = None,
) -> bytes:
    """Fetch the bytes of a place behind a URL, with several tries.

    If the server does not answer, tries continue for `patience` seconds, and `report` receives one line about it. A URL
    that failed every try gets one try each time until one succeeds.
    """
    url, offset, size = place
    filesystem, path = open_filesystem(url)
    name = show_path(url)
    wait = Wait(name, 1) if url in failing_urls else Wait(name, TRIES, patience, is_stopped, report)
    while True:
        try:
            # By keyword, because protocols order these arguments differently.
            stretch = {"start": offset, "end": offset + size} if size else {}
            content: bytes = filesystem.cat_file(path, **stretch)
        except FileNotFoundError:
            raise BadAudioError(f"{name}: there is no such file") from None
        except Exception as error:  # every protocol has its own exceptions
            reason, short = one_line(error) or type(error).__name__, False
            if isinstance(error, PermissionError) or getattr(error, "status", None) in FINAL:
                raise DeniedError(f"{name}: cannot be read ({reason})") from None
        else:
            if not size or len(content) == size:
                failing_urls.discard(url)
                return content
            if len(content) > size:
                raise UserError(f"{url}: the server does not serve parts of files (HTTP ranges): download the folder")
            reason, short = f"only {len(content)} of {size} bytes arrived", True
        if not wait.try_again(reason, answered=short):
            break
    failing_urls.add(url)
    refusal = CutShortError if short else UnreachableError
    # No number in the message, so that a URL has the same reason whenever it fails.
    raise refusal(f"{name}: cannot be read after several tries ({reason})")


def file_size(url: str) -> int | None:
    """Size of a file behind a URL in bytes; None if the server does not say."""
    filesystem, path = open_filesystem(url)
    try:
        size = filesystem.size(path)
    except Exception:  # every protocol has its own exceptions; reading the file will report this one
        return None
    return int(size) if size else None


def download(url: str, path: Path, size: int | None) -> None:
    """Download a file to a path, a large one in parts with several requests at a time."""
    if size is None or size <= PART:
        path.write_bytes(fetch(ByteRange(url)))
        return
    path.touch()
    turn = threading.Lock()
    with path.open("r+b") as file, ThreadPoolExecutor(DOWNLOADS) as pool:

        def write(offset: int) -> None:
            content = fetch(ByteRange(url, offset, min(PART, size - offset)))
            with turn:
                file.seek(offset)
                file.write(content)

        list(pool.map(write, range(0, size, PART)))


def client_options(protocol: str) -> dict[str, Any]:
    """Time limits in seconds for the client of a protocol."""
    if protocol in ("http", "https"):
        timeout = importlib.import_module("aiohttp").ClientTimeout(total=None, sock_connect=CONNECT, sock_read=STALL)
        return {"client_kwargs": {"timeout": timeout}}
    if protocol == "s3":
        # Switch off the client's own retries, which would multiply with ours.
        limits = {"retries": {"total_max_attempts": 1}, "connect_timeout": CONNECT, "read_timeout": STALL}
        return {"config_kwargs": limits}
    return {}


def open_filesystem(url: str) -> tuple[Any, str]:
    check_protocol(url)
    try:
        options = client_options(url.partition("://")[0])
        return importlib.import_module("fsspec.core").url_to_fs(url, **options)
    except ImportError as error:
        extra = "s3" if url.startswith("s3://") else "corpora"
        raise UserError(f"{url}: cannot be opened ({one_line(error)}): pip install 'sjepa[{extra}]'") from None
    except Exception as error:  # every protocol has its own exception for a malformed URL
        raise BadAudioError(f"{show_path(url)}: cannot be opened ({one_line(error)})") from None
