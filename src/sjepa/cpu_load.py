"""How busy other programs keep the cores that this process may use."""

import os
import time
from pathlib import Path

import numpy as np

STATISTICS = Path("/proc/stat")  # Linux only
MEASURED = 0.3  # seconds


def available_cores() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores_in_use() -> float:
    """Return how many of the available cores are busy while this process waits for 0.3 s. Without /proc/stat, return 0.

    0.5 means one core for half of the time.
    """
    if not STATISTICS.exists():
        return 0.0
    before = read_ticks()
    time.sleep(MEASURED)
    busy, passed = read_ticks() - before
    return float((busy / passed.clip(1)).sum())


def read_ticks() -> np.ndarray:
    """Return clock ticks since the machine started, of each available core: (2, cores), busy ticks and all ticks."""
    wanted = {f"cpu{core}" for core in available_cores()}
    rows = [line.split() for line in STATISTICS.read_text("ascii").splitlines()]
    ticks = np.array([row[1:9] for row in rows if row[0] in wanted], np.int64)  # user, nice, system, idle, iowait, ...
    passed = ticks.sum(1)
    return np.stack([passed - ticks[:, 3] - ticks[:, 4], passed])
