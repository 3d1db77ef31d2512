"""Ranks as forks of the test process: torch is loaded already, so they start in a moment. No launcher is in between."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

from sjepa import cli


def start_ranks(
    world_size: int, arguments: list[str], output: Path, before: Callable[[], None] = lambda: None
) -> list[ForkProcess]:
    """Processes that run a command as ranks of one world. `before` runs in each of them first.

    What they print goes to a file.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    def work(rank: int) -> None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = os.fdopen(file, "w", buffering=1)  # in place of what pytest captures with
        here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in here.items()} | {"MASTER_ADDR": "127.0.0.1"})
        before()
        cli.main(arguments)

    processes = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(world_size)]
    for process in processes:
        process.start()
    return processes


def wait_for(processes: list[ForkProcess], seconds: float = 120) -> list[int | None]:
    """Exit codes, when all have ended."""
    for process in processes:
        process.join(seconds)
        if process.is_alive():
            process.kill()
    return [process.exitcode for process in processes]
