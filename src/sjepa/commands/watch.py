"""`sjepa watch`: a live view of a run in the terminal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.bounds import INTERVAL
from sjepa.errors import UserError
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Watch:
    """A live view of a run in progress, also of one that another process or machine is writing; ctrl-C leaves it.

    It reads metrics.jsonl alone, so the run is not disturbed.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run; one that has not begun yet is waited for."""
    every: Annotated[float, INTERVAL] = 2.0
    """Seconds between looks."""
    once: bool = False
    """Print it as it is now and leave; so it is also where the output is not a terminal."""


def run(arguments: list[str]) -> None:
    command = parse(Watch, "sjepa watch", arguments)
    if command.run.exists() and not command.run.is_dir():
        raise UserError(f"{command.run} is a file: give the folder of a run")
    from sjepa.watch import watch

    watch(command.run, command.every, command.once)
