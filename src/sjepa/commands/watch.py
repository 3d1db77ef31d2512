"""`sjepa watch`: a live view of a run in the terminal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.errors import UserError


@dataclass(frozen=True)
class Watch:
    """A live view of a run in progress, also of one that another process or machine is writing; ctrl-C leaves it.

    It reads metrics.jsonl alone, so the run is not disturbed.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run; one that has not begun yet is waited for."""
    every: float = 2.0
    """Seconds between looks."""
    once: bool = False
    """Print it as it is now and leave; so it is also where the output is not a terminal."""


def run(arguments: list[str]) -> None:
    command = tyro.cli(Watch, prog="sjepa watch", args=arguments)
    if command.every <= 0:
        raise UserError(f"--every {command.every:g}: seconds above 0")
    if command.run.exists() and not command.run.is_dir():
        raise UserError(f"{command.run} is a file: give the folder of a run")
    from sjepa.watch import watch

    watch(command.run, command.every, command.once)
