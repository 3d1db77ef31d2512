"""Fetch audio behind URLs before it is read, with several requests at a time."""

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
from sjepa.data.storage import ByteRange, CutShortError, fetch, fetched_ahead, is_url
from sjepa.data.waiting import OUTAGE

GAP = 65_536  # bytes: a smaller gap between two stretches is cheaper to fetch than a second request
REQUESTS = 16  # concurrent requests per reading process
QUIET = 60.0  # seconds between two reports of an outage
AHEAD = 3  # batches that each process fetches ahead


class Prefetch:
    """Fetches the audio of one stream of batches ahead, in threads of the reading process."""

    def __init__(self, ended: Tensor | None = None, reports: bool = False):
        """`ended` becomes true when no more batches are needed. With `reports`, outages are printed."""
        self.ended = torch.zeros(1, dtype=torch.bool) if ended is None else ended
        self.reports, self.reported = reports, -QUIET
        self.pool: ThreadPoolExecutor | None = None
        self.pending: dict[Hashable, list[tuple[ByteRange, Future[bytes]]]] = {}

    def start(self, key: Hashable, places: Iterable[ByteRange]) -> None:
        """Start to fetch the places that are behind URLs, under the name `key`."""
        if key in self.pending:
            return
        remote = sorted(place for place in places if is_url(place.path))
        if not remote:
            return
        if self.pool is None:
            self.pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="fetch")
        self.pending[key] = [
            (run, self.pool.submit(fetch, run, OUTAGE, self.is_ended, self.report)) for run in join_neighbours(remote)
        ]

    @contextmanager
    def hold(self, key: Hashable, places: Iterable[ByteRange]) -> Iterator[None]:
        """Wait for the places of `key`. Inside the block, `read_bytes` in this thread uses them."""
        self.start(key, places)
        fetched_ahead.held = []
        for run, future in self.pending.pop(key, []):
            try:
                fetched_ahead.held.append((run, future.result()))
            except CutShortError:
                continue  # each place is then read, and refused, on its own
            except BadAudioError as error:
                fetched_ahead.held.append((run, error))
        try:
            yield
        finally:
            fetched_ahead.held = []

    def keep_only(self, keys: set[Hashable]) -> None:
        """Forget what was fetched for other keys."""
        for key in [key for key in self.pending if key not in keys]:
            for _, future in self.pending.pop(key):
                future.cancel()

    def is_ended(self) -> bool:
        return bool(self.ended)

    def report(self, line: str) -> None:
        """Print a line about an outage, from one process of the run and not too often."""
        worker = torch.utils.data.get_worker_info()
        now = time.monotonic()
        if self.reports and (worker is None or worker.id == 0) and now - self.reported >= QUIET:
            self.reported = now
            os.write(2, f"\nsjepa: {line}\n".encode())


def join_neighbours(places: list[ByteRange]) -> list[ByteRange]:
    """Merge sorted stretches that are next to each other. Whole files stay as they are."""
    starts = [0] + [
        index
        for index, (a, b) in enumerate(pairwise(places), 1)
        if a.path != b.path or not a.size or not b.size or b.offset > a.offset + a.size + GAP
    ]
    joined = []
    for first, end in pairwise([*starts, len(places)]):
        if first < end:
            stop = max(place.offset + place.size for place in places[first:end])
            joined.append(ByteRange(places[first].path, places[first].offset, stop - places[first].offset))
    return joined


class Order(NamedTuple):
    """A batch to read, and the next batches of the same process."""

    spec: BatchSpec
    following: tuple[BatchSpec, ...]


def place_orders(specs: Iterator[BatchSpec], processes: int) -> Iterator[Order]:
    """Assign batches to processes in turn."""
    window = deque(islice(specs, processes * AHEAD))
    for last in specs:
        window.append(last)
        yield Order(window.popleft(), tuple(islice(window, processes - 1, None, processes)))
