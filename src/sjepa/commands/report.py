"""`sjepa report`: one page of a run, or of several beside each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sjepa.bounds import COUNT
from sjepa.errors import UserError
from sjepa.subcommands import parse


@dataclass(frozen=True)
class ReportCommand:
    """One HTML page that needs no network: what was run, health, figures, results, and an utterance explorer.

    Several runs are laid over each other. With --data, what is missing for the explorer, the entropies and the clusters
    is made first; the page says what else is missing, and which command makes it.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of runs."""
    data: Path | None = None
    """Audio for the explorer: LibriSpeech with its phones, a synthetic corpus, or any folder of audio."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    utterances: Annotated[int, COUNT] = 6
    """Utterances in the explorer, where it is made."""
    results: tuple[Path, ...] = ()
    """Further folders with results.json at any depth, besides the runs' own."""
    out: Path | None = None
    """The page; RUN/report.html by default, of several runs comparison.html in the first."""
    title: str | None = None
    """Its title."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes a GPU where there is one."""


def run(arguments: list[str]) -> None:
    command = parse(ReportCommand, "sjepa report", arguments)
    if not command.runs:
        raise UserError("which run? sjepa report RUN, or several to compare them")
    data = () if command.data is None else (command.data,)
    for folder in (*command.runs, *command.results, *data):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
    from sjepa.analysis.missing import analyse_missing
    from sjepa.locks import lock_folder
    from sjepa.report.page import plotly_source, write_comparison, write_page
    from sjepa.runs.folder import RunFolder

    plotly_source()  # before the work rather than after it
    if command.data is not None:
        for folder in command.runs:
            with lock_folder(RunFolder(folder).analysis):
                analyse_missing(folder, command.data, command.subset, command.utterances, command.device)
    out = command.out or command.runs[0] / ("report.html" if len(command.runs) == 1 else "comparison.html")
    if len(command.runs) > 1:
        write_comparison(command.runs, out, command.title or "", command.results)
    else:
        title = command.title or f"S-JEPA: {command.runs[0].resolve().name}"
        write_page(command.runs[0], out, None, title, command.results)
    print(f"The page: {out} ({out.stat().st_size / 2**20:.1f} MB)")
