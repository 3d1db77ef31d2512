"""`sjepa table`: many encoders and tasks in one table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sjepa.files import write_whole


@dataclass(frozen=True)
class Table:
    """One table of everything that `superb`, `probe` and `units` measured below some folders.

    Reported results of others are marked; lite results are in a table of their own.
    """

    folders: Annotated[list[Path], tyro.conf.Positional]
    """Folders with results.json at any depth."""
    format: Literal["markdown", "csv", "latex"] = "markdown"
    """How to write it."""
    reported: bool = True
    """Put the paper's reported rows beside."""
    out: Path | None = None
    """A file; the screen by default."""


def run(arguments: list[str]) -> None:
    command = tyro.cli(Table, prog="sjepa table", args=arguments)
    from sjepa.evaluate.table import as_csv, build_sections, find_results, latex, markdown

    sections = build_sections(find_results(command.folders), command.reported)
    text = {"markdown": markdown, "csv": as_csv, "latex": latex}[command.format](sections)
    if command.out is None:
        print(text, end="")
    else:
        write_whole(command.out, text)
        print(f"written to {command.out}")
