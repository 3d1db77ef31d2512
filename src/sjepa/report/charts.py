"""Charts of a run: from the events of metrics.jsonl to Plotly figures, as plain dicts."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from sjepa.analysis.style import GRID, INK, MASKED, MUTED, PLAIN, PREDICTOR, RULE, SHADE, TARGET, VISIBLE, WARNING, ramp
from sjepa.report.demo_comparison import ProbedTask, Role
from sjepa.runs.events import (
    Event,
    active_layers,
    decay_switches,
    find_metric,
    last_step,
    phase_spans,
    schedule_ends,
    select_events,
)

Chart = dict[str, Any]
"""`data`, `layout` and perhaps `config`, as Plotly.newPlot takes them."""

PALE_BLUE = "#8fc1de"
BAR_COLOURS = {Role.OURS: PLAIN, Role.EARLIER: PALE_BLUE, Role.BASELINE: "#c3c9cf"}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def loss(events: Sequence[Event]) -> Chart:
    traces = [
        curve(events, "kl_masked", "masked KL", MASKED),
        *([curve(events, "kl_encoder", "encoder's masked KL", PALE_BLUE)] if has_encoder_loss(events) else []),
        curve(events, "kl_visible", "visible KL", VISIBLE),
        curve(events, "loss", "loss", INK, width=1.2, dash="dot"),
        average_line(events),
    ]
    return chart_over_steps(events, traces, height=420, y={"title": {"text": "nats per frame"}}, name_endings=True)


def has_encoder_loss(events: Sequence[Event]) -> bool:
    """Whether the encoder's own prediction at masked frames is in the loss."""
    return any(event.get("kl_encoder") is not None for event in select_events(events, "train"))


def accuracy(events: Sequence[Event]) -> Chart:
    traces = [
        curve(events, "accuracy_masked", "masked", MASKED, form=".1%"),
        curve(events, "accuracy_visible", "visible", VISIBLE, form=".1%"),
    ]
    return chart_over_steps(events, traces, y={"tickformat": ".0%", "rangemode": "tozero"})


def held_out(events: Sequence[Event]) -> Chart:
    """Accuracy at masked frames of training audio and of held-out audio."""
    traces = [
        curve(events, "accuracy_training", "training audio", MASKED, form=".1%", kind="held_out"),
        curve(events, "accuracy_held_out", "held-out audio", INK, form=".1%", kind="held_out"),
    ]
    return chart_over_steps(events, traces, y={"tickformat": ".0%", "rangemode": "tozero"})


def effective_ranks(events: Sequence[Event]) -> Chart:
    """Every layer's rank (dots: measured; lines: smoothed) over a strip that shows the active layer."""
    checks = select_events(events, "layers")
    steps = [check["step"] for check in checks]
    colours = ramp(len(checks[-1]["smoothed"]))
    traces = []
    for layer, colour in enumerate(colours):
        measured = scatter(
            steps, [check["effective_ranks"][layer] for check in checks], f"layer {layer}, measured", colour
        )
        measured |= {"mode": "markers", "marker": {"size": 5, "color": colour, "opacity": 0.35}}
        traces.append(measured | {"showlegend": False, "hoverinfo": "skip", "hovertemplate": None})
        smoothed = [check["smoothed"][layer] for check in checks]
        traces.append(scatter(steps, smoothed, f"layer {layer}", colour, form=".1f", width=2.2))
    active = [check["active_layer"] for check in checks]
    hover = scatter(steps, [0.5] * len(steps), "active layer", INK) | {"mode": "markers", "yaxis": "y2"}
    hover |= {"customdata": active, "hovertemplate": "%{customdata}", "marker": {"opacity": 0}, "showlegend": False}
    y = {"title": {"text": "effective rank"}, "domain": [0.18, 1]}
    chart = chart_over_steps(events, [*traces, hover], height=440, y=y)
    layout = chart["layout"]
    layout["yaxis2"] = {"domain": [0, 0.09], "range": [0, 1], "showgrid": False, "zeroline": False, "fixedrange": True}
    layout["yaxis2"] |= {"tickvals": [0.5], "ticktext": ["active"], "tickfont": {"color": MUTED, "size": 12}}
    layout["xaxis"]["anchor"] = "y2"
    for number, (step, decay) in enumerate(decay_switches(events)):
        layout["shapes"].append(vertical_line(step, "dot"))
        height = 0.05 * (number % 3)  # labels of neighbouring lines do not collide on a narrow screen
        anchor = "right" if step > 0.9 * last_step(events) else "left"
        layout["annotations"].append(note(step, f"{decay:g}", anchor, height) | {"font": {"size": 10, "color": MUTED}})
    for start, end, layer, used in active_layers(events):
        strip: dict[str, Any] = {"type": "rect", "xref": "x", "yref": "y2", "x0": start, "x1": end, "y0": 0, "y1": 1}
        layout["shapes"].append(
            strip | {"fillcolor": colours[layer], "opacity": 1 if used else 0.35, "line": {"width": 0}}
        )
        share = (end - start) / last_step(events)
        if share > 0.04:  # there is room for a word
            pale = not used or layer > 0.7 * (len(colours) - 1)
            text = {
                "text": f"layer {layer}" if share > 0.2 else str(layer),
                "font": {"size": 12, "color": INK if pale else "#ffffff"},
            }
            place = {"xref": "x", "yref": "y2", "x": (start + end) / 2, "y": 0.5, "showarrow": False}
            layout["annotations"].append(text | place)
    return chart


def decay(events: Sequence[Event]) -> Chart:
    """Decay of the target encoder. A logged line describes the steps before it, hence the shape `vh`."""
    used = [line for line in select_events(events, "train") if line.get("decay") is not None]
    start = next((start for phase, start, _ in phase_spans(events) if phase == used[0]["phase"]), used[0]["step"])
    steps, values = [start, *(line["step"] for line in used)], [used[0]["decay"], *(line["decay"] for line in used)]
    trace = scatter(steps, values, "", PLAIN, form=".6~g") | {"mode": "lines"}
    trace["line"]["shape"] = "vh"
    levels = sorted(set(values))
    room = 0.15 * (levels[-1] - levels[0]) or 1e-4
    y = {"tickvals": levels, "ticktext": [f"{level:g}" for level in levels]}
    chart = chart_over_steps(events, [trace], y=y | {"range": [levels[0] - room, levels[-1] + room]}, first=start)
    return chart | {"layout": chart["layout"] | {"showlegend": False}}


def entropy(events: Sequence[Event]) -> Chart:
    traces = [
        curve(events, "predictor_entropy", "predictor", PREDICTOR),
        curve(events, "target_entropy", "targets", TARGET),
        components_line(events, "uniform", math.log2, ".2f"),
    ]
    return chart_over_steps(events, traces, y={"title": {"text": "bits"}, "rangemode": "tozero"})


def components(events: Sequence[Event]) -> Chart:
    traces = [
        curve(events, "target_perplexity", "in use (perplexity)", TARGET, form=".1f"),
        curve(events, "dead_components", "dead", WARNING, form="d"),
        components_line(events, "K", float, "d"),
    ]
    return chart_over_steps(events, traces, y={"title": {"text": "components"}, "rangemode": "tozero"})


def small_chart(events: Sequence[Event], name: str, form: str, ticks: str) -> Chart:
    """A small chart of one quantity, without buttons, for which it has no room."""
    y = {"rangemode": "tozero", "tickformat": ticks, "nticks": 5, "exponentformat": "power"}
    chart = chart_over_steps(events, [curve(events, name, "", PLAIN, form=form, width=1.6)], height=210, y=y)
    chart["layout"] |= {"showlegend": False, "margin": {"l": 8, "r": 12, "t": 24, "b": 8}}
    chart["layout"]["xaxis"] |= {"title": None, "nticks": 4}
    return chart | {"config": {"displayModeBar": False}}


def bars(task: ProbedTask) -> Chart:
    """Accuracies of all systems as horizontal bars, with deviations."""
    names = [escape(system.name, quote=False) for system in task.systems]  # Plotly reads a kind of HTML
    spread = [system.deviation for system in task.systems]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [system.accuracy for system in task.systems],
        "y": names,
        "marker": {"color": [BAR_COLOURS[system.role] for system in task.systems]},
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
        "error_x": {"type": "data", "array": spread, "thickness": 1.4, "width": 5, "color": MUTED},
    }
    words = {  # beyond the error bars
        "type": "scatter",
        "mode": "text",
        "x": [system.accuracy + system.deviation for system in task.systems],
        "y": names,
        "text": [f" <b>{system.accuracy:.1%}</b>" for system in task.systems],
        "textposition": "middle right",
        "textfont": {"size": 14, "color": INK},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }
    layout = base_layout(height=64 + 46 * len(names))
    layout |= {"bargap": 0.38, "showlegend": False, "hovermode": "closest"}
    layout["shapes"] = [vertical_line(task.chance, "dot", INK)]
    layout["annotations"] = [note(task.chance, f"chance {task.chance:.1%}", anchor="center")]
    layout["margin"] |= {"r": 52, "t": 26}
    layout["xaxis"] |= {"range": [0, 1], "tickformat": ".0%", "nticks": 6, "tickangle": 0, "showline": False}
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "ticksuffix": "  ", "tickfont": {"size": 14}}
    return {"data": [trace, words], "layout": layout}


def scatter(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, form: str = ".3f", width: float = 2) -> Event:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 20 else "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": width},
        "marker": {"size": 5, "color": colour},
        "hovertemplate": f"%{{y:{form}}}" + ("" if name else "<extra></extra>"),
    }


def curve(
    events: Sequence[Event],
    key: str,
    name: str,
    colour: str,
    form: str = ".3f",
    width: float = 2,
    dash: str = "solid",
    kind: str = "train",
) -> Event:
    """A logged quantity over steps, interrupted between phases, because their targets differ."""
    x: list[int] = []
    y: list[float | None] = []
    phase = None
    for line in select_events(events, kind):
        if x and line.get("phase") != phase:
            x.append(x[-1])
            y.append(None)
        phase = line.get("phase")
        x.append(line["step"])
        y.append(find_metric(line, key))
    trace = scatter(x, y, name, colour, form, width)
    trace["line"]["dash"] = dash
    return trace


def average_line(events: Sequence[Event]) -> Event:
    """The loss of always predicting the average target."""
    lines = [line | {"average": average_loss(line)} for line in select_events(events, "train")]
    return curve(lines, "average", "always the average", RULE, width=1.4, dash="dash")


def is_at_average(line: Event, key: str) -> bool:
    """Whether a logged divergence is no better than that of the average target, to a hundredth."""
    found, average = line.get(key), average_loss(line)
    return found is not None and average is not None and found > 0.99 * average


def average_loss(line: Event) -> float | None:
    """The loss of predicting the mean posterior at every frame: H(mean q) - mean H(q), in nats."""
    perplexity, bits = line.get("target_perplexity"), line.get("target_entropy")
    return None if perplexity is None or bits is None else math.log(perplexity) - bits * math.log(2)


def components_line(events: Sequence[Event], name: str, height: Any, form: str) -> Event:
    """The largest value that K components allow, as a dotted line in each phase."""
    x: list[int] = []
    y: list[float | None] = []
    for phase, (_, start, end) in zip(select_events(events, "phase"), phase_spans(events), strict=True):
        x += [start, end, end]
        y += [height(phase["k"]), height(phase["k"]), None]
    trace = scatter(x, y, name, RULE, form, width=1.4) | {"mode": "lines"}
    trace["line"]["dash"] = "dot"
    return trace


def base_layout(height: int) -> dict[str, Any]:
    axis = {"automargin": True, "gridcolor": GRID, "zeroline": False, "tickfont": {"color": MUTED, "size": 12}}
    spike = {"spikecolor": RULE, "spikethickness": 1, "spikedash": "solid"}
    title = {"font": {"color": MUTED, "size": 12}, "standoff": 8}
    return {
        "height": height,
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "margin": {"l": 8, "r": 16, "t": 64, "b": 8},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverlabel": {"bgcolor": "#ffffff", "bordercolor": RULE, "font": {"size": 12, "color": INK}},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top", "font": {"size": 13}},
        "xaxis": axis | {"showgrid": False, "showline": True, "linecolor": RULE, "title": title} | spike,
        "yaxis": axis | {"title": title},
    }


def chart_over_steps(
    events: Sequence[Event],
    traces: list[Event],
    height: int = 340,
    y: dict[str, Any] | None = None,
    name_endings: bool = False,
    first: int = 0,
) -> Chart:
    """The layout that all curves share: steps from `first` on the x axis, shaded phases, marks where something ends."""
    layout, last = base_layout(height), last_step(events)
    layout["xaxis"] |= {"range": [first, last], "tickformat": ",d", "hoverformat": ",d", "nticks": 7}
    layout["xaxis"]["title"] = layout["xaxis"]["title"] | {"text": "step"}
    layout["xaxis"]["unifiedhovertitle"] = {"text": "step %{x:,d}"}
    given = dict(y or {})
    layout["yaxis"]["title"] = layout["yaxis"]["title"] | given.pop("title", {})
    layout["yaxis"] |= given
    shapes, notes = [], []
    for index, (number, start, end) in enumerate(phase_spans(events)):
        if index % 2:
            shade = {"type": "rect", "xref": "x", "yref": "y domain", "x0": start, "x1": end, "y0": 0, "y1": 1}
            shapes += [shade | {"fillcolor": SHADE, "line": {"width": 0}, "layer": "below"}, vertical_line(start)]
        if end > start >= first:
            # The name of a short last phase ends where the phase ends, because it would not fit after its start.
            short = end == last and start > last - 0.3 * (last - first)
            notes.append(note(end if short else start, f"<b>Phase {number}</b>", "right" if short else "left"))
    top = 1.075 if name_endings else 1  # their names stand above those of the phases
    for step, ended in schedule_ends(events).items():
        shapes.append(vertical_line(step, "dot", top=top))
        if name_endings:
            text = " and ".join(ended) + (" end" if len(ended) > 1 else " ends")
            notes.append(note(step, text, anchor="right" if step > 0.5 * last else "left", y=top))
    layout["margin"]["t"] += 22 if name_endings else 0
    return {"data": traces, "layout": layout | {"shapes": shapes, "annotations": notes}}


def vertical_line(x: float, dash: str = "solid", colour: str = RULE, top: float = 1) -> dict[str, Any]:
    line = {"color": colour, "width": 1.2, "dash": dash}
    return {"type": "line", "xref": "x", "yref": "y domain", "x0": x, "x1": x, "y0": 0, "y1": top, "line": line}


def note(x: float, text: str, anchor: str = "left", y: float = 1) -> dict[str, Any]:
    """A label above the plot."""
    place = {"xref": "x", "yref": "y domain", "x": x, "y": y, "xanchor": anchor, "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"size": 12, "color": MUTED}} | place
