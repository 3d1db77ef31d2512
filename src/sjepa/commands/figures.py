"""`sjepa figures`: draw the paper's figures and tables from the available results."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.errors import UserError
from sjepa.files import require_folder
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Figures:
    """Write all figures (PDF and SVG) and tables (LaTeX and Markdown) of the paper that the available results allow.

    No model runs. The data come from the runs' logs, from the findings of `sjepa analyze`, and from the results of
    `superb`, `probe` and `units`. The command lists what is missing, and how to produce it.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs. If there are several, the file names of each run's figures start with its name."""
    out: Path = Path("figures")
    """Folder for the figures and tables."""
    results: tuple[Path, ...] = ()
    """More folders to search for results.json, at any depth. The runs' own results are always included."""


def run(arguments: list[str]) -> None:
    command = parse(Figures, "sjepa figures", arguments)
    if not command.runs:
        raise UserError("no run given: sjepa figures RUN, or several runs")
    from sjepa.locks import lock_folder
    from sjepa.runs.folder import RunFolder

    for folder in command.runs:
        RunFolder(folder).require()
    for folder in command.results:
        require_folder(folder)
    from sjepa.analysis.figures import make_figures
    from sjepa.analysis.style import require_matplotlib

    require_matplotlib()
    with lock_folder(command.out):
        made = make_figures(command.runs, command.out, command.results)
    for path in made.files:
        print(path)
    if made.missing:
        print("Missing, with the command that produces the data:")
    for what, command_line in made.missing:
        print(f"  {what}: {command_line}")
