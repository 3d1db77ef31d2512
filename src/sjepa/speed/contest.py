"""Compare the speed of several implementations on a machine with other load."""

import statistics
from collections.abc import Callable, Mapping

import torch

from sjepa.speed.output import announce
from sjepa.speed.timing import time_call


def time_alternately(
    what: str, contestants: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, list[float]]:
    """Return the milliseconds of every call. Calls alternate, so other load affects all contestants equally.

    Before each timed call, the contestant runs once untimed. A first call is up to 15% slower on a CPU: threads of the
    previous contestant are still waiting for work, and the caches hold its data.
    """
    announce(f"Timing {what}: {', '.join(contestants)}, {rounds} times each")
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            times[name].append(time_call(work, device, repeats=1, warmup=1))
    return times


def summarize(times: Mapping[str, list[float]], ours: str) -> dict[str, dict[str, float]]:
    """Return the median time of each contestant, and the median over rounds of its ratio to `ours`."""
    return {
        name: {
            "ms": statistics.median(taken),
            "ratio": statistics.median(theirs / mine for theirs, mine in zip(taken, times[ours], strict=True)),
        }
        for name, taken in times.items()
    }
