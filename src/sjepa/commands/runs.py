"""`sjepa runs`: list the runs in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sjepa.errors import UserError
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Runs:
    """List runs with their state, step, phase, loss, results, last activity, and the settings in which they differ.

    `sjepa runs runs/` lists all runs below a folder. `sjepa runs runs/mine` shows one run with its history: every start
    and stop, on which machine, and what each start changed.
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("runs"),)
    """Folders that hold runs, or folders of runs."""
    format: Literal["table", "json", "csv"] = "table"
    """Format of the list. json and csv include all results, and the settings that differ in full."""


def run(arguments: list[str]) -> None:
    command = parse(Runs, "sjepa runs", arguments)
    from sjepa.report import listing
    from sjepa.runs.folder import RunFolder, suggest_start

    folders = command.folders
    found = listing.find_runs(folders)
    if not found:
        raise UserError(f"there is no run in {', '.join(map(str, folders))}: {suggest_start('RUN')}")
    listed = listing.list_runs(found)
    if command.format == "json":
        print(listing.as_json(listed))
    elif command.format == "csv":
        print(listing.as_csv(listed), end="")
    else:
        from rich.console import Console

        console = Console()
        for table in listing.as_tables(listed):
            console.print(table)
        only = RunFolder(folders[0])
        if len(folders) == 1 and only.exists and only.history:
            for table in listing.history_tables(only):
                console.print(table)
