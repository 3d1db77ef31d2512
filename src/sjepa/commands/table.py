"""`sjepa table`: collect the results of many encoders and tasks in one table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sjepa.errors import UserError
from sjepa.files import write_whole
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Table:
    """Collect everything that `superb`, `probe`, `units` and `cost` measured below some folders in one table.

    Published results are marked. Lite results have a table of their own.
    """

    folders: Annotated[list[Path], tyro.conf.Positional]
    """Folders to search for results.json, at any depth, or such files."""
    format: Literal["markdown", "csv", "latex"] = "markdown"
    """Format of the table."""
    reported: bool = True
    """Include published results: the SUPERB leaderboard, and the papers of S-JEPA and SpidR."""
    out: Path | None = None
    """File for the table. Default: print it."""


def run(arguments: list[str]) -> None:
    command = parse(Table, "sjepa table", arguments)
    if not command.folders:
        raise UserError("no folder given: sjepa table FOLDER, or several folders")
    from sjepa.evaluate.cost_files import find_costs
    from sjepa.evaluate.results import find_results
    from sjepa.evaluate.table import build_sections
    from sjepa.evaluate.tabular import to_csv, to_latex, to_markdown

    results = find_results(command.folders)
    if not results:
        raise UserError(
            "no scores below these folders: run `sjepa superb`, `probe` or `units` first; `sjepa cost` only adds "
            "columns to their rows"
        )
    sections = build_sections(results, command.reported, find_costs(command.folders))
    text = {"markdown": to_markdown, "csv": to_csv, "latex": to_latex}[command.format](sections)
    if command.out is None:
        print(text, end="")
    else:
        write_whole(command.out, text)
        print(f"The table is in {command.out}")
