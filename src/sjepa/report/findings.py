"""Sections of a page about results and analyses: probes, results, layers, entropy, clusters, size, gaps."""

import shlex
from html import escape
from typing import Any

from sjepa.analysis.clusters import occupancies
from sjepa.analysis.entropy import describe_modes
from sjepa.analysis.names import LABELS, calibration_moment
from sjepa.analysis.pareto import analyse_pareto
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.table import Section, build_sections, find_section
from sjepa.evaluate.tabular import Cell, format_table
from sjepa.report import charts, findings_charts
from sjepa.report.blocks import SectionBody, figure, folded, note, prose, table
from sjepa.report.contents import Report
from sjepa.report.training import accuracy_title
from sjepa.runs.events import select_events


def results(report: Report) -> SectionBody | None:
    """The comparison of the demo, and a table of all results of `superb`, `probe` and `units` in the run."""
    figures = "".join(
        figure(f"comparison-{index}", accuracy_title(task.name), charts.bars(task), task.about)
        for index, task in enumerate(report.comparison.tasks)
    )
    tables = "".join(results_table(part) for part in build_sections(report.results))
    if not figures and not tables:
        return None
    return SectionBody(
        "Linear probes on frozen features. The dotted line is chance: the most frequent answer." if figures else "",
        (f'<div class="grid">{figures}</div>' if figures else "") + tables,
    )


def results_table(part: Section) -> str:
    """A table of results in the paper's form: size classes have headings, probes have encoders as columns."""
    formatted = format_table(part)
    rows = []
    for name, members in formatted.groups:
        rows += [[Cell(name, bold=True), *(Cell("") for _ in formatted.head[1:])]] if name else []
        rows += members
    content = table(formatted.head, rows)
    return f"<figure><h3>{escape(part.title)}</h3>{content}<figcaption>{prose(part.note)}</figcaption></figure>"


def layers(report: Report) -> SectionBody:
    if not select_events(report.events, "layers"):
        return SectionBody("", note("No effective rank has been logged yet."))
    figures = figure(
        "effective-ranks",
        "Effective rank",
        charts.effective_ranks(report.events),
        "Dots are measurements, lines their running mean. Dark layers are close to the audio. At dotted vertical lines "
        "the target encoder's decay switches to the value next to the line. The strip names the active layer: pale "
        "while it is only measured, in full colour while the targets come from it.",
    )
    calibration = report.found.get("erank", {}).get("calibration")
    if calibration:
        agree = "the same layer" if calibration["best_layer"] == calibration["highest_rank_layer"] else "not the same"
        figures += figure(
            "calibration",
            f"Does rank find the best layer? {calibration['metric'].upper()} against effective rank",
            findings_charts.calibration(calibration),
            f"A CTC head on every frozen layer {calibration_moment(calibration)}: {calibration['steps']:,} steps on "
            f"{calibration['corpus']}, {calibration['labels']} of held-out speakers. Rank correlation "
            f"{calibration['spearman']:+.2f} (p = {calibration['p']:.2g}, one-sided); layer "
            f"{calibration['best_layer']} is best and layer {calibration['highest_rank_layer']} has the highest rank: "
            f"{agree}.",
        )
    return SectionBody("Effective rank estimates how many directions the features of a layer use.", figures)


def entropy(report: Report) -> SectionBody | None:
    found = report.found.get("entropy")
    if not found:
        return None
    curves = found["distributions"].values()
    shares = table(
        [Cell(""), Cell("frames above 1 bit"), Cell("median")],
        [
            [Cell(curve["label"].capitalize()), Cell(f"{curve['above']['1']:.1%}"), Cell(f"{curve['median']:.2f} bits")]
            for curve in curves
        ],
    )
    histogram = figure(
        "entropy-distribution",
        "How uncertain frames are",
        findings_charts.entropy_distribution(found),
        "Vertical lines: 0.5 bits, 1 bit (a tie of two components) and 2 bits (a tie of four).",
    )
    joints = "".join(
        figure(
            f"entropy-joint-{path}",
            f"{LABELS[path].capitalize()}, against the target",
            findings_charts.entropy_joint(found, path),
            "On the diagonal, prediction and target are equally uncertain. Above it, the prediction is more uncertain.",
        )
        for path in found["joint"]
    )
    return SectionBody(
        "Entropy measures how undecided a distribution is: 0 bits if one component has all the probability, 1 bit if "
        "two share it equally. Frames above 1 bit are soft.",
        f'{shares}{histogram}{entropy_details(found)}<div class="grid">{joints}</div>',
    )


def entropy_details(found: dict[str, Any]) -> str:
    """How entropies were measured, how often prediction and target are soft together, and tests for several modes."""
    run = found["run"]
    measured = (
        f"Measured on {run['utterances']:,} utterances of {run['data']} at step {run['step']:,}: the cluster head with "
        "nothing masked, the predictor with every frame masked once."
    )
    tested = "Maxima of the smoothed density, and whether Hartigan's dip test rejects a single mode:"
    items = "".join(
        f"<li>{escape(curve['label'].capitalize())}: {escape(describe_modes(curve['modality']))}.</li>"
        for curve in found["distributions"].values()
    )
    text = "".join(f'<p class="about">{escape(words)}</p>' for words in (found["answer"], measured, tested))
    return folded("Details and tests", f'{text}<ul class="about">{items}</ul>')


def clusters(report: Report) -> SectionBody | None:
    figures = ""
    for part in occupancies(report.events):
        figures += figure(
            f"occupancy-{part['phase']}",
            f"Occupancy in phase {part['phase']}",
            findings_charts.occupancy(part),
            f"One row per component, sorted by its share at the end, largest at the bottom. {part['dead'][-1]} of "
            f"{part['components']} are dead at the end. Before that, {sum(part['died'])} died and "
            f"{sum(part['born'])} were revived.",
        )
    content = f'<div class="grid">{figures}</div>' if figures else ""
    phones = report.found.get("clusters", {}).get("phones")
    if phones:
        scores = phones["agreement"]
        content += figure(
            "phones",
            "Which phones each cluster holds",
            findings_charts.phones(phones),
            f"Posteriors of the target at step {phones['step']:,}, in phase {phones['phase']}, summed over "
            f"{phones['frames']:,} labelled frames. Each column sums to one. "
            f"Phone purity {scores['phone_purity']:.2f}, PNMI {scores['pnmi']:.2f}.",
        )
    about = "A healthy mixture uses nearly all of its components, and many of them correspond to one sound."
    return SectionBody(about, content) if content else None


def pareto(report: Report) -> SectionBody | None:
    """Size against score, if the run has results of the full protocol or the analysis was made."""
    own = any(find_section(result).kind is SectionKind.SUPERB for result in report.results)
    found = analyse_pareto(report.results) if own else report.found.get("pareto")
    if not found:
        return None
    figures = "".join(
        figure(f"pareto-{index}", about["title"], findings_charts.pareto(about), "")
        for index, about in enumerate(found["tasks"].values())
    )
    ours = "" if found["ours"] else " This run has no result of the full protocol yet."
    return SectionBody(
        f"SUPERB, full protocol. Grey systems are reported by others. The dashed line is the Pareto frontier.{ours}",
        f'<div class="grid">{figures}</div>',
    )


def gaps(report: Report) -> SectionBody | None:
    """List what the page does not show yet, with the command that adds it."""
    run = shlex.quote(str(report.folder))
    made_by: dict[str, tuple[bool, str]] = {
        "Utterance explorer": (bool(report.utterances), f"sjepa report {run} --data DATA"),
        "Entropy of both paths and of the target": (
            "entropy" in report.found,
            f"sjepa analyze entropy {run} --data DATA",
        ),
        "Phones of the clusters": (
            bool(report.found.get("clusters", {}).get("phones")),
            f"sjepa analyze clusters {run} --data LABELLED",
        ),
        "Calibration of effective rank": (
            bool(report.found.get("erank", {}).get("calibration")),
            f"sjepa analyze erank {run} --data LABELLED",
        ),
        "Probes": (
            bool(report.comparison.tasks) or any(r["task"] == "probe" for r in report.results),
            f"sjepa probe --encoder {run} --data LABELLED",
        ),
        "SUPERB, and size against score": (
            any(find_section(r).kind is SectionKind.SUPERB for r in report.results),
            f"sjepa superb asr --encoder {run} --data LibriSpeech",
        ),
        "Occupancy of the components, in every tenth log line": (
            bool(select_events(report.events, "clusters")),
            f"sjepa pretrain --out {run}",
        ),
    }
    missing = {what: command for what, (there, command) in made_by.items() if not there}
    if not missing:
        return None
    rows = "".join(f"<dt>{escape(w)}</dt><dd><code>{escape(c)}</code></dd>" for w, c in missing.items())
    return SectionBody(
        "Each command adds its result to the run. Then run `sjepa report` again.",
        f'<dl class="gaps">{rows}</dl>',
    )
