"""Several runs on one page: settings that differ, curves of all runs, results."""

from collections.abc import Sequence
from html import escape
from typing import Any

from sjepa.analysis.names import LABELS, PATHS
from sjepa.analysis.style import INK, MASKED, PREDICTOR, RULE, SKY, TARGET, VISIBLE, WARNING
from sjepa.durations import AUDIO, format_duration
from sjepa.evaluate.table import build_sections
from sjepa.evaluate.tabular import Cell
from sjepa.fields import flatten_tables
from sjepa.report.blocks import SectionBody, card, figure, note, prose, table
from sjepa.report.charts import Chart, base_layout, curve, vertical_line
from sjepa.report.contents import Report
from sjepa.report.findings import results_table
from sjepa.report.findings_charts import axis_title

COLOURS = (MASKED, VISIBLE, TARGET, PREDICTOR, WARNING, SKY, INK)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
CURVES: tuple[tuple[str, str, str, str], ...] = (
    ("accuracy_masked", "Accuracy at masked frames", ".1%", "Compare only runs with the same K and data."),
    ("accuracy_visible", "Accuracy at visible frames", ".1%", "The same at frames that the encoder sees."),
    ("kl_masked", "Masked KL", ".3f", "Nats per frame. Compare only runs with the same targets."),
    ("target_entropy", "Entropy of the targets", ".2f", "Bits per frame."),
    ("predictor_entropy", "Entropy of the predictor", ".2f", "Bits per frame, at masked frames."),
    ("target_perplexity", "Components in use", ".1f", "Perplexity of the mean posterior."),
    (
        "rank",
        "Effective rank of the active layer",
        ".1f",
        "Smoothed; of the layer with the highest rank if none is active.",
    ),
    ("audio_per_second", "Speed", ",.0f", "Seconds of audio per second of training."),
)


def names(reports: Sequence[Report]) -> list[str]:
    """A short name for each run, or its path if two runs share a name."""
    short = [report.name for report in reports]
    return [name if short.count(name) == 1 else str(r.folder) for name, r in zip(short, reports, strict=True)]


def header(reports: Sequence[Report], title: str) -> str:
    lede = f"{len(reports)} runs together. Every curve is named after its run; hover to read all of them at one step."
    cards = ""
    for name, report in zip(names(reports), reports, strict=True):
        last = (report.lines or [{}])[-1]
        remark = "no line logged yet"
        if last:
            level = f", K = {report.components:,}, chance {report.chance:.1%}" if report.chance else ""
            remark = f"masked accuracy at step {last['step']:,}{level}"
        cards += card(name, percent(last.get("accuracy_masked")), remark)
    ledes = "".join(f'<p class="lede">{prose(words)}</p>' for words in (lede, describe_comparability(reports)))
    return f'<header><h1>{escape(title)}</h1>{ledes}<dl class="cards">{cards}</dl></header>'


def describe_comparability(reports: Sequence[Report]) -> str:
    """Say whether the accuracies of the runs can be compared: not if K or the data differ."""
    differing = [
        word
        for word, values in (
            ("K", {report.components for report in reports}),
            ("data", {str(report.facts.get("corpus", report.facts.get("data"))) for report in reports}),
        )
        if len(values) > 1
    ]
    if differing:
        return f"These runs differ in {' and '.join(differing)}: their masked accuracies are not comparable."
    return "Masked accuracy is comparable only between runs with the same K and data."


def overview(reports: Sequence[Report]) -> SectionBody:
    head = [Cell(""), *map(Cell, names(reports))]
    facts: dict[str, list[str]] = {}
    for report in reports:
        last, encoder = (report.lines or [{}])[-1], report.config.get("encoder", {})
        steps = f"{last['step']:,} of {report.planned_steps:,}" if last and report.planned_steps else "none yet"
        cells = describe_data(report) | {
            "K": f"{report.components:,}" if report.components else "–",
            "encoder": f"{encoder['layers']} layers, width {encoder['hidden_size']}" if encoder else "–",
            "steps": steps,
            "audio processed": format_duration(report.audio_seconds, AUDIO),
            "time": format_duration(report.seconds_trained),
            "accuracy, masked": percent(last.get("accuracy_masked")),
            "accuracy, visible": percent(last.get("accuracy_visible")),
            "entropy of targets": bits(last.get("target_entropy")),
            "entropy of predictor": bits(last.get("predictor_entropy")),
            "dead components": str(last.get("dead_components", "–")),
            "lines with alarms": str(sum(bool(line.get("alarms")) for line in report.lines)),
        }
        for name, cell in cells.items():
            facts.setdefault(name, []).append(cell)
    return SectionBody(
        "From their last logged lines.", table(head, [map(Cell, [name, *cells]) for name, cells in facts.items()])
    )


def describe_data(report: Report) -> dict[str, str]:
    return {
        "data": str(report.facts.get("data", "–")),
        "hours of data": "–" if report.hours is None else f"{report.hours:,.2f}",
    }


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def bits(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} bits"


def settings(reports: Sequence[Report]) -> SectionBody:
    flat = [describe_data(report) | flatten_tables(report.config) for report in reports]
    keys = list(dict.fromkeys(key for each in flat for key in each))
    rows = [
        [key, *(str(each.get(key, "–")) for each in flat)] for key in keys if len({str(e.get(key)) for e in flat}) > 1
    ]
    head = [Cell("setting"), *map(Cell, names(reports))]
    content = table(head, [map(Cell, row) for row in rows]) if rows else note("No setting differs.")
    return SectionBody("", content)


def curves(reports: Sequence[Report]) -> SectionBody:
    begun = [report for report in reports if report.lines]
    if not begun:
        return SectionBody("", note("None of these runs has logged a line yet."))
    figures = ""
    for key, title, form, caption in CURVES:
        chart = overlay(reports, key, form)
        if any(value is not None for trace in chart["data"] for value in trace["y"]):
            figures += figure(f"compare-{key}", title, chart, caption)
    about = "Curves break where a new phase of a run begins, at the dotted vertical line in its colour."
    return SectionBody(about, f'<div class="grid">{figures}</div>')


def overlay(reports: Sequence[Report], key: str, form: str) -> Chart:
    """One quantity of all runs."""
    traces, shapes = [], []
    for index, (report, name) in enumerate(zip(reports, names(reports), strict=True)):
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        lines = [line | {"rank": active_rank(line)} for line in report.lines]
        traces.append(curve(lines, key, escape(name, quote=False), colour, form=form, dash=dash))
        begun = [event["step"] for event in report.events if event.get("event") == "phase" and event["phase"] > 1]
        shapes += [vertical_line(step, "dot", colour) for step in begun]
    layout = base_layout(height=330) | {"shapes": shapes, "showlegend": True}
    layout["margin"] |= {"t": 44}
    layout["xaxis"] |= {
        "tickformat": ",d",
        "nticks": 7,
        "rangemode": "tozero",
        "unifiedhovertitle": {"text": "step %{x:,d}"},
    }
    layout["yaxis"] |= {"rangemode": "tozero", "tickformat": ".0%" if form.endswith("%") else ""}
    axis_title(layout, "xaxis", "step")
    return {"data": traces, "layout": layout}


def active_rank(line: dict[str, Any]) -> float | None:
    effective_ranks, layer = line.get("effective_rank") or [], line.get("active_layer")
    if not effective_ranks:
        return None
    return effective_ranks[layer] if layer is not None else max(effective_ranks)


def softness(reports: Sequence[Report]) -> SectionBody | None:
    """Entropies of all runs that were analysed."""
    known = [(n, r.found["entropy"]) for n, r in zip(names(reports), reports, strict=True) if "entropy" in r.found]
    if not known:
        return None
    figures = ""
    for part in (*PATHS, "target"):
        traces = []
        for index, (name, found) in enumerate(known):
            kept = found["distributions"].get(part)
            if kept is None:  # no frame was on this path
                continue
            shares = [count / max(1, kept["frames"]) for count in kept["counts"]]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{escape(name, quote=False)}: {kept['above']['1']:.1%} above 1 bit",
                    "x": found["edges"][1:],
                    "y": [sum(shares[: place + 1]) for place in range(len(shares))],
                    "line": {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[index % len(DASHES)], "width": 2},
                    "hovertemplate": "%{y:.1%}",
                }
            )
        layout = base_layout(height=340) | {"shapes": [vertical_line(mark, "dot", RULE) for mark in (0.5, 1, 2)]}
        layout["yaxis"] |= {"tickformat": ".0%", "range": [0, 1.02]}
        layout["margin"] |= {"t": 44}
        axis_title(layout, "xaxis", "bits")
        axis_title(layout, "yaxis", "share of frames below")
        if traces:
            title = f"Entropy: {LABELS[part]}"
            figures += figure(f"softness-{part}", title, {"data": traces, "layout": layout}, "")
    return SectionBody("Cumulative distributions.", f'<div class="grid">{figures}</div>')


def results(reports: Sequence[Report]) -> SectionBody:
    found = [result for report in reports for result in report.results]
    tables = "".join(results_table(part) for part in build_sections(found))
    missing = note("These runs have no results yet: `sjepa probe --encoder RUN` adds some.")
    return SectionBody("", tables or missing)
