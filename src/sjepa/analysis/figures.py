"""Draw every figure and table of the paper that the available results allow, and list what is missing."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sjepa.analysis.clusters import analyse_clusters, draw_clusters
from sjepa.analysis.entropy import draw_entropy
from sjepa.analysis.erank import analyse_erank, draw_erank
from sjepa.analysis.pareto import analyse_pareto, draw_pareto
from sjepa.analysis.progress import analyse_progress, draw_progress
from sjepa.analysis.style import Findings, file_name, findings_file, utterance_files, write_formats
from sjepa.analysis.utterance import draw_utterance
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.results import find_results
from sjepa.evaluate.table import build_sections
from sjepa.evaluate.tabular import to_latex, to_markdown
from sjepa.fields import refuse_surprises
from sjepa.files import read_json, write_whole
from sjepa.runs.folder import RunFolder

FORMATS = ("pdf", "svg")
TABLES = {SectionKind.SUPERB: "superb", SectionKind.PROBES: "probes", SectionKind.UNITS: "units"}


@dataclass
class FigureList:
    """The files that were written, and each missing figure with the command that produces its data."""

    files: list[Path] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)


def make_figures(runs: Sequence[Path], out: Path, results: Sequence[Path] = ()) -> FigureList:
    """Write the figures of each run and of all runs together as PDF and SVG, and tables as LaTeX and Markdown.

    No model runs. Figures come from logs, from the files of `sjepa analyze`, and from results.
    """
    made = FigureList()
    out.mkdir(parents=True, exist_ok=True)
    with write_formats(*FORMATS):
        names = [file_name(RunFolder(run).name) for run in runs]
        for number, (run, name) in enumerate(zip(runs, names, strict=True), 1):
            unique = name if names.count(name) == 1 else f"{name}-{number}"
            draw_run(RunFolder(run), out, f"{unique}-" if len(runs) > 1 else "", made)
        draw_size([*runs, *results], runs[0], out, made)
    write_tables([*runs, *results], runs[0], out, made)
    return made


def draw_run(run: RunFolder, out: Path, prefix: str, made: FigureList) -> None:
    """Draw the figures of one run."""
    where = shlex.quote(str(run))

    def draw(name: str, found: Findings, with_draw: Callable[[Findings, Path], None]) -> None:
        with_draw(found, out / f"{prefix}{name}")
        made.files += [out / f"{prefix}{name}.{kind}" for kind in FORMATS]

    def draw_saved(name: str, with_draw: Callable[[Findings, Path], None], title: str, command: str) -> None:
        path = findings_file(run.analysis, name)
        if not path.is_file():
            made.missing.append((title, command))
            return
        with refuse_surprises(path, "run the analysis again"):
            draw(name, read_json(path), with_draw)

    calibrated: Findings = {}
    if (kept := findings_file(run.analysis, "erank")).is_file():
        calibrated = read_json(kept)
    try:
        draw("erank", analyse_erank(run.path) | {"calibration": calibrated.get("calibration")}, draw_erank)
    except UserError as error:
        made.missing.append((f"effective rank of {run.name} ({error})", f"sjepa pretrain --out {where}"))
    if not calibrated.get("calibration"):
        made.missing.append(
            (f"calibration of {run.name}'s effective rank", f"sjepa analyze erank {where} --data LABELLED")
        )
    draw_saved(
        "entropy", draw_entropy, f"entropy of {run.name}'s frames", f"sjepa analyze entropy {where} --data dev-clean"
    )
    utterances = utterance_files(run.analysis)
    for path in utterances:
        draw_saved(path.stem, draw_utterance, "", "")
    if not utterances:
        made.missing.append(
            (f"utterances of {run.name}", f"sjepa analyze utterance {where} --data LibriSpeech --alignments FOLDER")
        )
    found = analyse_clusters(run.path) if run.log.is_file() else {}
    kept = findings_file(run.analysis, "clusters")
    phones = read_json(kept).get("phones") if kept.is_file() else None
    if found.get("occupancy") or phones:
        draw("clusters", found | {"phones": phones}, draw_clusters)
    if not phones:
        made.missing.append((f"phones of {run.name}'s clusters", f"sjepa analyze clusters {where} --data LABELLED"))
    try:
        draw("progress", analyse_progress(run.path), draw_progress)
    except UserError:
        made.missing.append((f"probes over {run.name}'s training", f"sjepa analyze progress {where} --data LABELLED"))


def draw_size(folders: Sequence[Path], run: Path, out: Path, made: FigureList) -> None:
    """Draw the Pareto figure of reported systems and of all available results."""
    found = analyse_pareto(find_results(folder for folder in folders if folder.is_dir()))
    draw_pareto(found, out / "pareto")
    made.files += [out / f"pareto.{kind}" for kind in FORMATS]
    if not found["ours"]:
        command = f"sjepa superb asr --encoder {shlex.quote(str(run))} --data LibriSpeech"
        made.missing.append(("our own points in the Pareto figure", f"{command}, and the same for er"))


def write_tables(folders: Sequence[Path], run: Path, out: Path, made: FigureList) -> None:
    """Write each kind of results as one table, in LaTeX and Markdown."""
    sections = build_sections(find_results(folders))
    for kind, name in TABLES.items():
        chosen = [section for section in sections if section.key.kind is kind]
        if chosen:
            for suffix, write in (("tex", to_latex), ("md", to_markdown)):
                write_whole(out / f"table-{name}.{suffix}", write(chosen))
                made.files.append(out / f"table-{name}.{suffix}")
    where = shlex.quote(str(run))
    commands = {
        SectionKind.SUPERB: ("the SUPERB table", f"sjepa superb all --encoder {where} --data CORPORA"),
        SectionKind.PROBES: ("the table of probes", f"sjepa probe --encoder {where} --data LibriSpeech"),
    }
    present = {section.key.kind for section in sections}
    made.missing += [missing for kind, missing in commands.items() if kind not in present]
