"""Audio behind URLs, fetched before it is read, with several requests at a time."""

import os
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from sjepa.audio.io import BadAudioError
from sjepa.data.sampler import BatchSpec
from sjepa.data.storage import CutShortError, Place, ahead, fetch, is_url

GAP = 65_536  # bytes between two stretches that are cheaper to fetch than a request of their own
REQUESTS = 16  # at a time, in each process that reads
OUTAGE = 180.0  # seconds that a run waits for a server that does not answer: less than a scheduler's warning
QUIET = 60.0  # seconds between two reports of an outage
AHEAD = 3  # batches whose audio each process fetches while it makes another


class Prefetch:
    """What one stream of batches fetches ahead. Its requests run in threads of the process that reads."""

    def __init__(self, ended: Tensor | None = None, reports: bool = False):
        """`ended` becomes true when no more batches are needed. `reports`: tell of outages."""
        self.ended = torch.zeros(1, dtype=torch.bool) if ended is None else ended
        self.reports, self.reported = reports, -QUIET
        self.pool: ThreadPoolExecutor | None = None
        self.pending: dict[Hashable, list[tuple[Place, Future[bytes]]]] = {}

    def start(self, key: Hashable, places: Iterable[Place]) -> None:
        """Begin to fetch the places that lie behind URLs; `key` names them."""
        remote = sorted(place for place in places if is_url(place.path))
        if key in self.pending or not remote:
            return
        if self.pool is None:
            self.pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="fetch")
        self.pending[key] = [
            (run, self.pool.submit(fetch, run, OUTAGE, self.is_ended, self.report)) for run in join_neighbours(remote)
        ]

    @contextmanager
    def hold(self, key: Hashable, places: Iterable[Place]) -> Iterator[None]:
        """While this is open, `read_bytes` in this thread has the places of `key`, which are waited for here."""
        self.start(key, places)
        ahead.held = []
        for run, future in self.pending.pop(key, []):
            try:
                ahead.held.append((run, future.result()))
            except CutShortError:
                continue  # then each is read, and refused, by itself
            except BadAudioError as error:
                ahead.held.append((run, error))
        try:
            yield
        finally:
            ahead.held = []

    def keep_only(self, keys: set[Hashable]) -> None:
        """Forget what was fetched for other keys."""
        for key in [key for key in self.pending if key not in keys]:
            for _, future in self.pending.pop(key):
                future.cancel()

    def is_ended(self) -> bool:
        return bool(self.ended)

    def report(self, line: str) -> None:
        """Tell of an outage, in one process of a run and now and then only."""
        worker = torch.utils.data.get_worker_info()
        now = time.monotonic()
        if self.reports and (worker is None or worker.id == 0) and now - self.reported >= QUIET:
            self.reported = now
            os.write(2, f"\nsjepa: {line}\n".encode())


def join_neighbours(places: list[Place]) -> list[Place]:
    """Stretches that lie side by side as one, from sorted ones; whole files stay as they are."""
    starts = [0] + [
        index
        for index, (a, b) in enumerate(pairwise(places), 1)
        if a.path != b.path or not a.size or not b.size or b.offset > a.offset + a.size + GAP
    ]
    joined = []
    for first, end in pairwise([*starts, len(places)]):
        if first < end:
            stop = max(place.offset + place.size for place in places[first:end])
            joined.append(Place(places[first].path, places[first].offset, stop - places[first].offset))
    return joined


class Order(NamedTuple):
    """A batch to make, and those that the same process makes next."""

    spec: BatchSpec
    following: tuple[BatchSpec, ...]


def place_orders(specs: Iterator[BatchSpec], processes: int) -> Iterator[Order]:
    """Orders for processes that take turns."""
    window = deque(islice(specs, processes * AHEAD))
    for last in specs:
        window.append(last)
        yield Order(window.popleft(), tuple(islice(window, processes - 1, None, processes)))
