"""The worker processes of a data loader: how many there are, and which have ended."""

import copy
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from sjepa.cpu_load import available_cores
from sjepa.stopping import SIGNALS

PATIENCE = 1.0  # seconds to wait for a worker with a broken pipe to end
MOST_ON_GPU, MOST_ON_CPU = 8, 2  # eight decode 16,700 s of FLAC per second, more than an H200 needs


def choose_workers(wanted: int | None, device: str) -> int:
    """The number of workers of a rank: the requested number, or one that suits its cores and its device."""
    if wanted is not None:
        return wanted
    share = len(available_cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of the ranks on this machine
    return max(1, min(share - 1, MOST_ON_GPU if device == "cuda" else MOST_ON_CPU))


def record_processes() -> tuple[BaseContext, list[BaseProcess]]:
    """Return a context for `DataLoader(multiprocessing_context=...)`, and the list of processes that it starts.

    The loader names dead workers only in the text of its errors. The processes themselves have exit codes.
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
    """Ignore stop signals in a worker, because the main process needs batches until its step has ended.

    Launchers and schedulers send these signals to every process of the group. Workers end when the loader is closed.
    """
    signal.set_wakeup_fd(-1)  # inherited from the main process, which would answer the signals of its workers
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """End this worker process soon after its parent, which may be killed without ending its workers."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def find_ended(processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    """The processes that have ended, or end within a second."""
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
