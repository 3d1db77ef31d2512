"""Several implementations of the same work, timed against each other on a machine that does other things too."""

import statistics
from collections.abc import Callable, Mapping

import torch

from sjepa.speed.output import stage
from sjepa.speed.timing import milliseconds


def in_turn(
    what: str, contestants: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of every call: one of each in turn, so that other work on the machine hits all alike."""
    stage(f"Timing {what}: {', '.join(contestants)}, {rounds} times each")
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for work in contestants.values():
        work()
    for _ in range(rounds):
        for name, work in contestants.items():
            times[name].append(milliseconds(work, device, repeats=1, warmup=0))
    return times


def figures(times: Mapping[str, list[float]], ours: str) -> dict[str, dict[str, float]]:
    """Median time of each, and how many times as long as ours it takes: the median over the rounds."""
    return {
        name: {
            "ms": statistics.median(taken),
            "ratio": statistics.median(theirs / mine for theirs, mine in zip(taken, times[ours], strict=True)),
        }
        for name, taken in times.items()
    }
