"""`sjepa report`: write one page about a run, or about several."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.bounds import COUNT
from sjepa.device import Device
from sjepa.errors import UserError
from sjepa.files import require_folder
from sjepa.subcommands import parse


@dataclass(frozen=True)
class ReportCommand:
    """Write one HTML page that loads nothing from the network: settings, health, figures, results, utterance explorer.

    Several runs are drawn together. With --data, the command first computes what is missing for the explorer, the
    entropies and the clusters. The page lists what else is missing, and the command that makes it.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folder of one run, or folders of several to compare."""
    data: Path | None = None
    """Audio for the explorer: LibriSpeech with phone labels, a corpus with labels.jsonl, or any folder of audio."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    utterances: Annotated[int, COUNT] = 6
    """Number of utterances in the explorer."""
    results: tuple[Path, ...] = ()
    """More folders to search for results.json, at any depth. The runs' own results are always included."""
    out: Path | None = None
    """File for the page. Default: RUN/report.html, or comparison.html in the first of several runs."""
    title: str | None = None
    """Title of the page."""
    device: Device = "auto"
    """Where to run; auto uses a GPU if there is one."""


def run(arguments: list[str]) -> None:
    command = parse(ReportCommand, "sjepa report", arguments)
    if not command.runs:
        raise UserError("name a run: sjepa report RUN, or several to compare them")
    data = () if command.data is None else (command.data,)
    for folder in (*command.runs, *command.results, *data):
        require_folder(folder)
    from sjepa.locks import lock_folder
    from sjepa.report.page import require_plotly, write_comparison, write_page
    from sjepa.runs.folder import RunFolder, page_name

    require_plotly()
    if command.data is not None:
        from sjepa.analysis.missing import analyse_missing
        from sjepa.analysis.speech import CorpusLabels

        corpus = CorpusLabels(command.data, command.subset)
        for folder in command.runs:
            with lock_folder(RunFolder(folder).analysis):
                analyse_missing(folder, corpus, command.utterances, command.device)
    out = command.out or command.runs[0] / page_name(len(command.runs))
    if len(command.runs) > 1:
        write_comparison(command.runs, out, command.title or "", command.results)
    else:
        title = command.title or f"S-JEPA: {command.runs[0].resolve().name}"
        write_page(command.runs[0], out, None, title, command.results)
    print(f"The page: {out} ({out.stat().st_size / 2**20:.1f} MB)")
