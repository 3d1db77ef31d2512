"""The worker processes of a data loader: how many there are, and which have ended."""

import copy
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from sjepa.stopping import SIGNALS

PATIENCE = 1.0  # seconds: a worker whose pipe broke may take a moment to end
MOST_ON_GPU, MOST_ON_CPU = 8, 2  # eight decode 16,700 s of FLAC a second, more than an H200 trains on


def choose_workers(wanted: int | None, device: str) -> int:
    """Worker processes of a rank: as many as were asked for, or what its share of the cores and its device call for."""
    if wanted is not None:
        return wanted
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of the ranks that torchrun started here
    return max(1, min(share - 1, MOST_ON_GPU if device == "cuda" else MOST_ON_CPU))


def record_processes() -> tuple[BaseContext, list[BaseProcess]]:
    """A context for `DataLoader(multiprocessing_context=...)`, and the list of processes that it starts.

    The loader tells of its workers only in the text of its errors; the processes themselves have exit codes.
    """
    started: list[BaseProcess] = []
    context = copy.copy(multiprocessing.get_context())
    make = context.Process

    def process(*arguments: Any, **options: Any) -> BaseProcess:
        started.append(make(*arguments, **options))
        return started[-1]

    context.Process = process  # type: ignore[assignment, misc]
    return context, started


def ignore_stop_signals(worker: int) -> None:
    """In a worker: leave signals that stop a run to its main process, which needs batches until its step has ended.

    A launcher or a scheduler sends them to every process of the group. Workers end when the loader is closed.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def find_ended(processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    """The processes that have ended, or end within a moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        ended = [process for process in processes if process.exitcode is not None]
        if ended or time.monotonic() > deadline:
            return ended
        time.sleep(0.05)


def describe_end(process: BaseProcess) -> str:
    """The signal that ended a process, or its exit code."""
    code = process.exitcode or 0
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
