"""The page of a run, or of several: one self-contained HTML file."""

import base64
import gzip
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from sjepa.errors import UserError
from sjepa.fields import refuse_surprises
from sjepa.files import write_whole
from sjepa.report import compare, findings, training
from sjepa.report.blocks import PageSection, render_sections
from sjepa.report.contents import Report, read_report
from sjepa.report.demo_comparison import DemoComparison
from sjepa.report.explorer import explorer
from sjepa.report.masked import masked_frames
from sjepa.runs.folder import RunFolder

SCRIPTS = ("page.js", "tracks.js", "explorer.js")
# In the order of the page. Add a section here, and the navigation links to it.
RUN_SECTIONS: tuple[PageSection[Report], ...] = (
    PageSection("explorer", "Listen", "Listen frame by frame", lambda report: explorer([report])),
    PageSection("results", "Results", "What the features hold", findings.results),
    PageSection("masked", "Masked", "Masked prediction over training", masked_frames, needs_log=True),
    PageSection("learning", "Learning", "How it learned", training.learning_curves, needs_log=True),
    PageSection("layers", "Layers", "How rich each layer is", findings.layers, needs_log=True),
    PageSection("targets", "Targets", "What was predicted", training.targets, needs_log=True),
    PageSection("softness", "Softness", "Where the softness is", findings.entropy, needs_log=True),
    PageSection("clusters", "Clusters", "What the clusters are", findings.clusters, needs_log=True),
    PageSection("pareto", "Size", "Size against score", findings.pareto),
    PageSection("machinery", "Health", "How it ran", training.machinery, needs_log=True),
    PageSection("next", "Next", "What to run next", training.next_steps),
    PageSection("gaps", "Missing", "What is not here yet", findings.gaps),
    PageSection("details", "Details", "Details", training.details),
)
COMPARISON_SECTIONS: tuple[PageSection[Sequence[Report]], ...] = (
    PageSection("runs", "Runs", "The runs", compare.overview),
    PageSection("settings", "Settings", "Settings that differ", compare.settings),
    PageSection("curves", "Curves", "How they learned", compare.curves),
    PageSection("softness", "Softness", "How soft they are", compare.softness),
    PageSection("results", "Results", "What the features hold", compare.results),
    PageSection("explorer", "Listen", "Listen frame by frame", explorer),
)


def write_page(
    run: Path,
    out: Path,
    comparison: DemoComparison | None = None,
    title: str = "S-JEPA pre-training",
    more_results: tuple[Path, ...] = (),
) -> Path:
    """Write the page of a run folder. It opens without a network and can be mailed and archived."""
    report, folder = read_report(run, title, comparison, more_results), RunFolder(run)
    sections = [section for section in RUN_SECTIONS if report.lines or not section.needs_log]
    with refuse_surprises(f"{folder.log}, or a file in {folder.analysis.name}/ or {folder.results.name}/,"):
        header = training.header(report)
        links, body = render_sections(sections, report)
    return write_html(title, links, f"{header}\n{body}", out)


def write_comparison(runs: Sequence[Path], out: Path, title: str = "", more_results: tuple[Path, ...] = ()) -> Path:
    """Write one page about several runs."""
    reports = [read_report(run, "", None, more_results) for run in runs]
    title = title or " and ".join(compare.names(reports))
    with refuse_surprises(f"one of {', '.join(map(str, runs))}"):
        header = compare.header(reports, title)
        links, body = render_sections(COMPARISON_SECTIONS, reports)
    return write_html(title, links, f"{header}\n{body}", out)


def require_plotly() -> None:
    """Raise UserError if pages cannot be drawn. Commands call this before their work."""
    try:
        import plotly.offline  # noqa: F401
    except ImportError as error:
        raise UserError("the page needs plotly: pip install 'sjepa[figures]'") from error


def plotly_source() -> str:
    """The script of the chart library for the page, compressed and in base64.

    A browser takes seconds to parse the plain script. Compressed, it costs nothing until the page has been drawn, and
    takes a third of the bytes.
    """
    require_plotly()
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def write_html(title: str, navigation: str, body: str, out: Path) -> Path:
    sources = {
        name: resources.files("sjepa.report").joinpath(name).read_text("utf-8")
        for name in ("page.html", "page.css", *SCRIPTS)
    }
    html = Template(sources["page.html"]).substitute(
        title=escape(title),
        style=sources["page.css"],
        plotly=plotly_source(),
        script="\n".join(sources[name] for name in SCRIPTS),
        navigation=navigation,
        body=body,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, html)
    return out
