"""`sjepa watch`: show a live view of a run in the terminal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.bounds import INTERVAL
from sjepa.errors import UserError
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Watch:
    """Show a live view of a run in progress, also from another machine with a shared disk. Ctrl-C ends the view.

    The command reads only metrics.jsonl and config.toml, so it does not disturb the run.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run. If it does not exist yet, the command waits for it."""
    every: Annotated[float, INTERVAL] = 2.0
    """Seconds between updates."""
    once: bool = False
    """Print one view and exit; this is the default if the output is not a terminal."""


def run(arguments: list[str]) -> None:
    command = parse(Watch, "sjepa watch", arguments)
    if command.run.exists() and not command.run.is_dir():
        raise UserError(f"{command.run} is a file: give the folder of a run")
    from sjepa.watch import watch

    watch(command.run, command.every, command.once)
