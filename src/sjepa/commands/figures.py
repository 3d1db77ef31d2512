"""`sjepa figures`: the paper's figures and tables, from the results at hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.errors import UserError
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Figures:
    """All figures and tables of the paper that the results at hand allow: PDF and SVG, LaTeX and Markdown.

    No model runs here. Figures come from the runs' logs, from what `sjepa analyze` left in them, and from results of
    `superb`, `probe` and `units`. What is missing is listed with the command that makes it.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of runs; of several, each one's figures begin with its name."""
    out: Path = Path("figures")
    """Folder of the figures."""
    results: tuple[Path, ...] = ()
    """Further folders with results.json at any depth, besides the runs' own."""


def run(arguments: list[str]) -> None:
    command = parse(Figures, "sjepa figures", arguments)
    if not command.runs:
        raise UserError("which run? sjepa figures RUN, or several")
    from sjepa.locks import lock_folder
    from sjepa.runs.folder import RunFolder

    for folder in command.runs:
        RunFolder(folder).require()
    for folder in command.results:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
    from sjepa.analysis.figures import make_figures

    with lock_folder(command.out):
        made = make_figures(command.runs, command.out, command.results)
    for path in made.files:
        print(path)
    if made.missing:
        print("Not made, because something is missing:")
    for what, how in made.missing:
        print(f"  {what}: {how}")
