"""Read audio for an index, for shards or into memory, so that an outage of the storage leaves nothing out."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import numpy as np

from sjepa.audio.io import BadAudioError
from sjepa.data.storage import ByteRange, DeniedError, UnreachableError, fetch
from sjepa.data.waiting import OUTAGE, Wait
from sjepa.errors import OutageError
from sjepa.progress import say
from sjepa.stopping import StoppedError, nothing_unsaved

OTHERS = 8  # other files that are tried before a server counts as out of order

K = TypeVar("K")
T = TypeVar("T")


def collect(
    pool: Executor,
    read: Callable[[K], T | BadAudioError],
    keys: Sequence[K],
    place: Callable[[K], ByteRange],
    chunksize: int = 1,
) -> Iterator[T | str]:
    """Read `keys` in a pool and yield their results. An error becomes the reason why a key is refused.

    A key that was unreachable is read again once its server serves another key, and is refused if it still fails. If
    the server serves none, this raises OutageError, so that the same command can continue later.
    """
    try:
        for number, result in enumerate(pool.map(read, keys, chunksize=chunksize)):
            if isinstance(result, UnreachableError):
                wait_for_server(find_others(number, keys, place))
                result = pool.submit(read, keys[number]).result()
            yield str(result) if isinstance(result, BadAudioError) else result
    except (OutageError, StoppedError, KeyboardInterrupt):
        pool.shutdown(cancel_futures=True)  # the rest would fail one by one
        raise


def find_others(number: int, keys: Sequence[K], place: Callable[[K], ByteRange]) -> list[ByteRange]:
    """A few places in other files of the same server, in random order, or this place itself if there are none."""
    here = place(keys[number])
    found: dict[str, ByteRange] = {}
    for other in np.random.default_rng(number).permutation(len(keys)).tolist():
        there = place(keys[other])
        if there.path != here.path and server(there.path) == server(here.path):
            found[there.path] = there
            if len(found) == OTHERS:
                break
    return list(found.values()) or [here]


def server(url: str) -> str:
    """The protocol and the host, or the bucket, of a URL."""
    return "/".join(url.split("/", 3)[:3])


def wait_for_server(places: list[ByteRange]) -> None:
    """Wait until a server serves one of the places. Raise OutageError after a long time, or if it denies access."""
    wait = Wait(server(places[0].path), 1, OUTAGE, report=lambda line: say(f"sjepa: {line}", aside=True))
    while True:
        for place in places:
            try:
                fetch(place)
            except UnreachableError as error:
                reason = error
            except BadAudioError:  # for example, there is no such file: an answer too
                return
            else:
                return
        with nothing_unsaved():  # a signal ends the wait
            if isinstance(reason, DeniedError) or not wait.try_again(str(reason)):
                raise make_outage_error(str(reason))


def make_outage_error(reason: str) -> OutageError:
    return OutageError(f"the storage of the audio does not answer ({reason}); the same command continues")
