"""How busy other programs keep the cores that this process may use."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

STATISTICS = Path("/proc/stat")  # Linux only
SHORTEST = 0.3  # seconds; ticks are too coarse for less


@dataclass(frozen=True)
class Reading:
    """What the cores and this process had done at one moment."""

    moment: float
    own: float
    """CPU seconds of this process and of its children that have ended."""
    ticks: dict[str, tuple[int, int]]
    """Clock ticks since the machine started, of each available core: busy ticks and all ticks."""


_start: Reading | None = None  # the reading of `start_measuring`


def available_cores() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def start_measuring() -> None:
    """Begin the time that `cores_in_use` reports on."""
    global _start
    _start = read() if os.access(STATISTICS, os.R_OK) else None


def cores_in_use() -> float:
    """Return how many of the available cores other programs have kept busy, on average, since `start_measuring`.

    0.5 means one core for half of the time. Return 0 without /proc/stat, without a start, and right after it.
    """
    if _start is None:
        return 0.0
    now = read()
    passed = now.moment - _start.moment
    if passed < SHORTEST:
        return 0.0
    used = 0.0
    for core in now.ticks.keys() & _start.ticks.keys():
        busy, ticks = (after - before for after, before in zip(now.ticks[core], _start.ticks[core], strict=True))
        used += busy / max(1, ticks)
    return max(0.0, used - (now.own - _start.own) / passed)


def read() -> Reading:
    cores = {f"cpu{core}" for core in available_cores()}
    ticks = {}
    for line in STATISTICS.read_text("ascii").splitlines():
        name, *columns = line.split()
        if name in cores:
            counts = [int(column) for column in columns[:8]]  # user, nice, system, idle, iowait, irq, softirq, steal
            ticks[name] = (sum(counts) - counts[3] - counts[4], sum(counts))
    return Reading(time.monotonic(), sum(os.times()[:4]), ticks)
