"""The page of a run, or of several beside each other: one HTML file that needs nothing else."""

import base64
import gzip
import re
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from sjepa.errors import UserError
from sjepa.fields import refuse_surprises
from sjepa.files import write_whole
from sjepa.report import compare
from sjepa.report.contents import Report, read_report
from sjepa.report.explorer import explorer
from sjepa.report.findings import FINDINGS, gaps
from sjepa.report.masked import masked_frames
from sjepa.report.training import details, header, learning_curves, machinery, next_steps, targets
from sjepa.runs.folder import RunFolder

Section = Callable[[Report], str]


def write_page(
    run: Path,
    out: Path,
    comparison: dict[str, Any] | None = None,
    title: str = "S-JEPA pre-training",
    more_results: tuple[Path, ...] = (),
) -> Path:
    """Write the page of a run directory; it can be opened, mailed and archived without a network."""
    return write(read_report(run, title, comparison, more_results), out)


def write(report: Report, out: Path) -> Path:
    sections: list[Section] = [header, lambda report: explorer([report])]
    if report.lines:
        results, layers, *others = FINDINGS
        sections += [results, masked_frames, learning_curves, layers, targets, *others, machinery]
    else:
        sections += [section for section in FINDINGS if section.__name__ in ("results", "pareto")]
    run = RunFolder(report.folder)
    parts = []
    for section in (*sections, next_steps, gaps, details):
        with refuse_surprises(f"{run.log}, or a file in {run.analysis.name}/ or {run.results.name}/,"):
            parts.append(section(report))
    return write_html(report.title, parts, out)


def write_comparison(runs: Sequence[Path], out: Path, title: str = "", more_results: tuple[Path, ...] = ()) -> Path:
    """Write a page with several runs over each other."""
    reports = [read_report(run, "", None, more_results) for run in runs]
    names = compare.names(reports)
    title = title or " and ".join(names)
    with refuse_surprises(f"one of {', '.join(map(str, runs))}"):
        parts = [compare.header(reports, title), *compare.sections(reports), explorer(reports)]
    return write_html(title, parts, out)


def plotly_source() -> str:
    """The chart library's script, which goes into the page: compressed, in base64.

    A browser takes seconds to read the script itself. Packed, it costs nothing until the page has been drawn, and a
    third of the bytes.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError("the page needs plotly: pip install 'sjepa[figures]'") from error
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def write_html(title: str, parts: Sequence[str], out: Path) -> Path:
    sources = {
        name: resources.files("sjepa.report").joinpath(name).read_text("utf-8")
        for name in ("page.html", "page.css", *SCRIPTS)
    }
    body = "\n".join(parts)
    html = Template(sources["page.html"]).substitute(
        title=escape(title),
        style=sources["page.css"],
        plotly=plotly_source(),
        script="\n".join(sources[name] for name in SCRIPTS),
        navigation=navigation(body),
        body=body,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, html)
    return out


SCRIPTS = ("page.js", "tracks.js", "explorer.js")
# Sections by their anchors, as the navigation calls them.
SHORT = {
    "explorer": "Listen",
    "runs": "Runs",
    "settings": "Settings",
    "results": "Results",
    "masked": "Masked",
    "curves": "Curves",
    "learning": "Learning",
    "layers": "Layers",
    "targets": "Targets",
    "softness": "Softness",
    "clusters": "Clusters",
    "pareto": "Size",
    "machinery": "Health",
    "next": "Next",
    "gaps": "Missing",
    "details": "Details",
}


def navigation(body: str) -> str:
    """Links to the sections of a page."""
    return "".join(f'<a href="#{name}">{SHORT[name]}</a>' for name in re.findall(r'<section id="(\w+)">', body))
