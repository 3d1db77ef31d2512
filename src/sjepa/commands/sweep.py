"""`sjepa sweep`: train and measure many runs that one file describes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from sjepa.bounds import INDEX
from sjepa.errors import UserError
from sjepa.stopping import INTERRUPTED
from sjepa.subcommands import parse

if TYPE_CHECKING:
    from sjepa.sweep.file import Sweep, SweepEntry


@dataclass(frozen=True)
class SweepCommand:
    """Train all runs that a file describes, evaluate them, and write one page that compares them.

    Runs whose settings agree in the first phases train these phases once. Run the same command again to continue.
    docs/runs.md explains the file, and how to turn the runs into the tasks of a Slurm array.
    """

    file: Annotated[Path, tyro.conf.Positional]
    """The TOML file that describes the runs."""
    only: tuple[str, ...] = ()
    """Train and evaluate only these runs, by name or pattern: soft-0 'hard-*'. Phases that they share with others are
    trained too."""
    list: bool = False
    """List the runs with their state, and exit."""
    array: bool = False
    """Print the range of tasks, 0-N, for `sbatch --array`, and exit."""
    task: Annotated[int | None, INDEX] = None
    """Train and evaluate only the run with this number in --list. Wait for phases that another task is training."""
    out: Path | None = None
    """Folder for the runs, instead of the one in the file."""
    data: str = ""
    """Audio to train on, instead of the data in the file."""


def run(arguments: list[str]) -> None:
    command = parse(SweepCommand, "sjepa sweep", arguments)
    from sjepa.commands import COMMANDS
    from sjepa.sweep.file import read_sweep
    from sjepa.sweep.work import SweepStoppedError, run_all

    sweep = read_sweep(command.file, COMMANDS, command.out, command.data)
    if command.array:
        print(f"0-{len(sweep.items) - 1}")
        return
    items = sweep.select(command.only)
    if command.task is not None:
        if command.task >= len(sweep.items):
            raise UserError(f"--task {command.task}: the last task is {len(sweep.items) - 1}")
        items = [sweep.items[command.task]]
    if command.list:
        show_list(sweep, items)
        return
    try:
        run_all(sweep, items)
    except SweepStoppedError:
        print("sjepa: the sweep was stopped; run the same command to continue", flush=True)
        raise SystemExit(INTERRUPTED) from None


def show_list(sweep: "Sweep", items: "list[SweepEntry]") -> None:
    from rich.console import Console

    from sjepa.report.listing import make_table
    from sjepa.sweep.work import is_measured

    rows = []
    for item in items:
        state, step = "", ""
        if item.config is not None:
            state, done = describe_run(sweep, item)
            step = f"{done:,} / {item.config.steps:,}"
        shares = ""
        if item.parent is not None:
            phases = "phase 1" if item.shared == 1 else f"phases 1 to {item.shared}"
            shares = f"{phases} of {item.parent.name}" if item.config is not None else item.parent.name
        left = [e.name for e in sweep.evaluations if e.is_for(item) and not is_measured(e, item)]
        rows.append((str(sweep.items.index(item)), item.name, state, step, shares, ", ".join(left)))
    Console().print(make_table(("task", "name", "state", "step", "shares", "to measure"), rows))


def describe_run(sweep: "Sweep", item: "SweepEntry") -> tuple[str, int]:
    """Return the state of a run and its step. The state says if the sweep would refuse the run, or cannot read it."""
    from sjepa.report.listing import find_state
    from sjepa.runs.folder import RunFolder
    from sjepa.sweep.audio import check_audio
    from sjepa.sweep.work import is_trained

    run = RunFolder(item.folder)
    if not run.exists:
        return "new", 0
    try:
        run.config()
        state, step, trained = find_state(run), run.step, is_trained(item)
    except UserError as error:
        return f"damaged: {error}", 0
    try:
        check_audio(sweep, item)
    except UserError as error:
        return f"refused: {error}", step
    return "to be lengthened or refused" if state == "complete" and not trained else state, step
