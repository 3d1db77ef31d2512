"""Bytes of a file, or of a stretch of it, on a disk or behind a URL."""

import importlib
import os
import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sjepa.audio.io import BadAudioError, one_line, shown
from sjepa.errors import UserError

TRIES = 5
FIRST_WAIT = 0.5  # seconds before the second try; each further wait is twice as long
# The S3 client's own retries would multiply with these: a server that is gone took 8 s a try.
OPTIONS: dict[str, dict[str, Any]] = {"s3": {"config_kwargs": {"retries": {"total_max_attempts": 1}}}}
GAP = 65_536  # bytes between two stretches that are cheaper to fetch than a request of their own
given_up: set[str] = set()  # URLs that failed every try: a broken shard must not cost every utterance in it the waits
ahead = threading.local()  # .held: stretches of URLs fetched before they are asked for


PROTOCOLS = frozenset({"http", "https", "s3"})
ALLOWED = "SJEPA_ALLOW_PROTOCOLS"  # set by --allow-protocols; worker processes inherit it


class Place(NamedTuple):
    """A stretch of a file."""

    path: str
    offset: int = 0
    size: int = 0  # 0: the whole file


def is_url(path: str) -> bool:
    return "://" in path


def read_bytes(place: Place) -> bytes:
    """The bytes of a place; a URL is tried again where it fails on the way."""
    path, offset, size = place
    if not is_url(path):
        content = read_local(place)
    else:
        for held, content in getattr(ahead, "held", []):
            if held.path == path and held.offset <= offset and size and offset + size <= held.offset + held.size:
                return content[offset - held.offset : offset - held.offset + size]
        content = fetch(place)
    if len(content) < size:
        raise BadAudioError(f"{shown(path)}: cut short, it holds fewer bytes than its index says")
    return content


def check_protocol(url: str) -> None:
    """Refuse URLs that are not of a protocol that is allowed: lists and indexes come from others.

    fsspec knows many more, with which a list could read local files or chain one protocol to another.
    """
    protocol = url.partition("://")[0]
    allowed = PROTOCOLS | set(filter(None, os.environ.get(ALLOWED, "").split(",")))
    if protocol not in allowed:
        known = ", ".join(sorted(allowed))
        reason = f"only {known} and local paths are read; --allow-protocols adds others"
        raise BadAudioError(f"{shown(url)}: cannot be opened: {reason}")
    try:
        whole = bool(urlsplit(url).netloc) or protocol not in PROTOCOLS
    except ValueError:
        whole = False
    if not whole:
        raise BadAudioError(f"{shown(url)}: cannot be opened: not a URL")


def read_local(place: Place) -> bytes:
    if os.path.exists(place.path) and not os.path.isfile(place.path):
        raise BadAudioError(f"{shown(place.path)}: not a regular file")
    try:
        with open(place.path, "rb") as file:
            file.seek(place.offset)
            return file.read(place.size or -1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte, an offset below 0
        reason = getattr(error, "strerror", None) or one_line(error)
        raise BadAudioError(f"{shown(place.path)}: cannot be read ({reason})") from error


def fetch(place: Place) -> bytes:
    url, offset, size = place
    filesystem, path = filesystem_of(url)
    for attempt in range(1 if url in given_up else TRIES):
        if attempt:
            time.sleep(FIRST_WAIT * 2 ** (attempt - 1))
        try:
            # By name, because the protocols order these differently.
            stretch = {"start": offset, "end": offset + size} if size else {}
            content: bytes = filesystem.cat_file(path, **stretch)
        except FileNotFoundError:
            raise BadAudioError(f"{shown(url)}: there is no such file") from None
        except Exception as error:  # every protocol has its own kinds of failure
            reason = one_line(error)
            continue
        if not size or len(content) == size:
            return content
        if len(content) > size:
            raise UserError(f"{url}: the server does not serve parts of files (HTTP ranges): download the folder")
        reason = f"{len(content)} of {size} bytes came"
    given_up.add(url)
    raise BadAudioError(f"{shown(url)}: cannot be read, tried {TRIES} times ({reason})")


def fetch_ahead(places: Iterable[Place]) -> None:
    """Fetch what lies side by side behind a URL in one request; `read_bytes` in this thread then has it."""
    ahead.held = []
    for run in runs(sorted(place for place in places if place.size and is_url(place.path))):
        try:
            ahead.held.append((run, fetch(run)))
        except BadAudioError:
            continue  # then each is read, and refused, by itself


def runs(places: list[Place]) -> list[Place]:
    """Neighbouring places joined, from sorted ones."""
    starts = [0] + [
        index
        for index, (a, b) in enumerate(pairwise(places), 1)
        if a.path != b.path or b.offset > a.offset + a.size + GAP
    ]
    joined = []
    for first, end in pairwise([*starts, len(places)]):
        if first < end:
            stop = max(place.offset + place.size for place in places[first:end])
            joined.append(Place(places[first].path, places[first].offset, stop - places[first].offset))
    return joined


def filesystem_of(url: str) -> tuple[Any, str]:
    check_protocol(url)
    try:
        options = OPTIONS.get(url.partition("://")[0], {})
        return importlib.import_module("fsspec.core").url_to_fs(url, **options)
    except ImportError as error:
        extra = "s3" if url.startswith("s3://") else "corpora"
        raise UserError(f"{url}: cannot be opened ({one_line(error)}): pip install 'sjepa[{extra}]'") from None
    except Exception as error:  # every protocol has its own idea of a malformed URL
        raise BadAudioError(f"{shown(url)}: cannot be opened ({one_line(error)})") from None
