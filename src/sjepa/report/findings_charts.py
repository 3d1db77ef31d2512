"""Charts of analyses: from the JSON of `sjepa analyze` to Plotly figures."""

import math
from html import escape
from typing import Any

import numpy as np

from sjepa.analysis.clusters import HIGHEST, LOWEST, TICKS, heat_map, step_edges
from sjepa.analysis.entropy import upper_limit
from sjepa.analysis.names import LABELS, calibration_moment
from sjepa.analysis.pareto import PAPER, frontier_line, size_axis
from sjepa.analysis.style import GRID, INK, MUTED, PLAIN, PREDICTOR, RULE, TARGET, VISIBLE, WARNING, ramp
from sjepa.report.charts import Chart, base_layout, vertical_line

# Light to dark, so that nothing is white on the page: single hue, readable in grey.
BLUES: list[list[Any]] = [
    [0, "#f7fbff"],
    [0.02, "#e3eef9"],
    [0.25, "#b0d2e7"],
    [0.5, "#6aaed6"],
    [0.75, "#2e7ebc"],
    [1, "#08306b"],
]
CIVIDIS: list[list[Any]] = [[0, "#00224e"], [0.25, "#35456c"], [0.5, "#7c7b78"], [0.75, "#bcae6c"], [1, "#fee838"]]


def axis_title(layout: dict[str, Any], axis: str, text: str) -> None:
    layout[axis]["title"] = layout[axis]["title"] | {"text": text}


def entropy_distribution(found: dict[str, Any]) -> Chart:
    """Overlaid histograms, on a logarithmic scale because most target frames are near zero."""
    edges, traces = found["edges"], []
    looks = {
        "visible": (VISIBLE, "solid"),
        "masked": (PREDICTOR, "solid"),
        "target": (TARGET, "solid"),
        "plain": (TARGET, "dot"),
    }
    for name, curve in found["distributions"].items():
        colour, dash = looks[name]
        shares = [count / max(1, curve["frames"]) or None for count in curve["counts"]]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": curve["label"],
                "x": edges[:-1],
                "y": shares,
                "line": {"color": colour, "width": 1.8, "dash": dash, "shape": "hv"},
                "fill": "tozeroy" if name != "plain" else "none",
                "fillcolor": colour + "38",
                "hovertemplate": "%{y:.2%}",
            }
        )
    layout = base_layout(height=380)
    layout["margin"] |= {"t": 44}
    layout["xaxis"] |= {"range": [0, upper_limit(found)], "unifiedhovertitle": {"text": "%{x:.2f} bits and 0.05 above"}}
    layout["yaxis"] |= {"type": "log", "tickformat": "~%", "tickvals": [1e-4, 1e-3, 1e-2, 0.1, 1]}
    axis_title(layout, "xaxis", "entropy of a frame (bits)")
    axis_title(layout, "yaxis", "share of frames")
    layout["shapes"] = [vertical_line(mark, "dot") for mark in found["marks"]]
    return {"data": traces, "layout": layout}


def entropy_joint(found: dict[str, Any], path: str) -> Chart:
    """A path against its target, frame by frame."""
    joint = found["joint"][path]
    counts, centres = np.array(joint["counts"]), np.array(joint["edges"])
    middle = ((centres[:-1] + centres[1:]) / 2).round(4).tolist()
    logs = [[float(np.log10(c)) if c else None for c in row] for row in counts.T.tolist()]
    ticks = [power for power in range(7) if 10**power <= max(1, counts.max())]
    trace = {
        "type": "heatmap",
        "x": middle,
        "y": middle,
        "z": logs,
        "customdata": counts.T.tolist(),
        "colorscale": [[1 - place, colour] for place, colour in reversed(CIVIDIS)],
        "hovertemplate": "target %{x:.2f}, " + path + " %{y:.2f} bits: %{customdata:,d} frames<extra></extra>",
        "colorbar": {"thickness": 10, "len": 0.8, "tickvals": ticks, "ticktext": [f"{10**t:,}" for t in ticks]},
    }
    most = upper_limit(found)
    layout = base_layout(height=400) | {"hovermode": "closest", "showlegend": False}
    layout["xaxis"] |= {"range": [0, most], "showgrid": True}
    layout["yaxis"] |= {"range": [0, most], "scaleanchor": "x", "constrain": "domain"}
    layout["xaxis"]["constrain"] = "domain"
    layout["margin"] |= {"t": 26}
    axis_title(layout, "xaxis", "target (bits)")
    axis_title(layout, "yaxis", f"{LABELS[path]} (bits)")
    diagonal = {"type": "line", "x0": 0, "y0": 0, "x1": most, "y1": most, "line": {"color": RULE, "width": 1}}
    return {"data": [trace], "layout": layout | {"shapes": [diagonal]}}


def calibration(found: dict[str, Any]) -> Chart:
    effective_ranks = found["effective_ranks"]
    layers = len(effective_ranks)
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": effective_ranks,
        "y": found["scores"],
        "text": [f"layer {layer}" for layer in range(layers)],
        "textposition": "top center",
        "cliponaxis": False,
        "marker": {"size": 14, "color": ramp(layers)},
        "hovertemplate": "%{text}: rank %{x:.1f}, " + found["metric"] + " %{y:.1f} %<extra></extra>",
    }
    layout = base_layout(height=340) | {"hovermode": "closest", "showlegend": False}
    layout["margin"] |= {"t": 30, "r": 40}
    axis_title(layout, "xaxis", f"effective rank {calibration_moment(found)}")
    axis_title(layout, "yaxis", f"{found['metric'].upper()} (%), lower is better")
    return {"data": [trace], "layout": layout}


def occupancy(part: dict[str, Any]) -> Chart:
    """Shares over time on a logarithmic scale, above the number of dead components."""
    drawn, order = heat_map(part)
    heat = {
        "type": "heatmap",
        "x": step_edges(part),
        "y": list(range(part["components"])),
        "z": drawn.round(3).tolist(),
        "customdata": [[int(k)] * len(part["steps"]) for k in order],
        "zmin": LOWEST,
        "zmax": HIGHEST,
        "colorscale": CIVIDIS,
        "hovertemplate": "near step %{x:,.0f}, component %{customdata}: 2^%{z:.1f} of an even share<extra></extra>",
        "colorbar": {
            "thickness": 10,
            "len": 0.7,
            "y": 0.65,
            "tickvals": list(TICKS),
            "ticktext": list(TICKS.values()),
        },
    }
    lines = []
    looks = (("dead", WARNING, "lines"), ("died", WARNING, "markers"), ("born", TARGET, "markers"))
    for name, colour, mode in looks:
        values = part[name] if name == "dead" else [number or None for number in part[name]]
        symbol = "triangle-down" if name == "died" else "triangle-up"
        lines.append(
            {
                "type": "scatter",
                "mode": mode,
                "name": name,
                "x": part["steps"],
                "y": values,
                "yaxis": "y2",
                "line": {"color": colour, "width": 2, "shape": "hv"},
                "marker": {"color": colour, "size": 8, "symbol": symbol},
                "hovertemplate": f"step %{{x:,d}}: %{{y}} {name}<extra></extra>",
            }
        )
    layout = base_layout(height=420) | {"hovermode": "closest"}
    layout["yaxis"] |= {"domain": [0.34, 1], "showgrid": False, "showticklabels": False, "ticks": ""}
    layout["yaxis2"] = layout["yaxis"] | {"domain": [0, 0.2], "rangemode": "tozero", "nticks": 4, "showgrid": True}
    layout["yaxis2"] |= {"showticklabels": True, "title": None}
    layout["xaxis"] |= {"anchor": "y2", "tickformat": ",d", "range": [step_edges(part)[0], part["steps"][-1]]}
    axis_title(layout, "xaxis", "step")
    axis_title(layout, "yaxis", "components")
    return {"data": [heat, *lines], "layout": layout}


def phones(found: dict[str, Any]) -> Chart:
    trace = {
        "type": "heatmap",
        "x": list(range(len(found["clusters"]))),
        "y": [escape(name, quote=False) for name in found["phones"]],
        "z": np.array(found["share"]).T.tolist(),
        "customdata": [found["clusters"]] * len(found["phones"]),
        "zmin": 0,
        "zmax": 1,
        "colorscale": BLUES,
        "hovertemplate": "cluster %{customdata}: %{z:.0%} %{y}<extra></extra>",
        "colorbar": {"thickness": 10, "len": 0.6, "tickformat": ".0%"},
    }
    layout = base_layout(height=120 + 14 * len(found["phones"])) | {"hovermode": "closest", "showlegend": False}
    layout["margin"] |= {"t": 16}
    layout["xaxis"] |= {"showticklabels": False, "ticks": ""}
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "tickfont": {"size": 10, "color": MUTED}}
    layout["yaxis"] |= {"dtick": 1, "ticks": "", "ticksuffix": " ", "type": "category"}
    axis_title(layout, "xaxis", f"{len(found['clusters'])} clusters, ordered by their main phone")
    return {"data": [trace], "layout": layout}


def pareto(about: dict[str, Any]) -> Chart:
    systems = about["systems"]
    line = frontier_line(systems)
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "frontier",
            "x": [x for x, _ in line],
            "y": [y for _, y in line],
            "line": {"color": INK, "width": 1.2, "dash": "dash"},
            "hoverinfo": "skip",
        }
    ]
    groups = (
        ("reported by others", [s for s in systems if not s["ours"] and s["name"] != PAPER], RULE, "circle", 8),
        (PAPER, [s for s in systems if s["name"] == PAPER], WARNING, "diamond", 11),
        ("measured here", [s for s in systems if s["ours"]], PLAIN, "star", 16),
    )
    for name, group, colour, symbol, width in groups:
        if group:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "name": name,
                    "x": [s["millions"] for s in group],
                    "y": [s["score"] for s in group],
                    "text": [escape(s["name"], quote=False) if s["frontier"] or s["ours"] else "" for s in group],
                    "customdata": [escape(s["name"], quote=False) for s in group],
                    "textposition": "top right",
                    "textfont": {"size": 11, "color": INK},
                    "cliponaxis": False,
                    "marker": {"size": width, "color": colour, "symbol": symbol, "line": {"width": 1, "color": "#fff"}},
                    "hovertemplate": "%{customdata}: %{x:.1f}M, %{y:.2f}<extra></extra>",
                }
            )
    layout = base_layout(height=440) | {"hovermode": "closest"}
    low, ticks = size_axis(about["systems"])
    limits = [math.log10(low), math.log10(900)]
    layout["xaxis"] |= {"type": "log", "tickvals": ticks, "range": limits, "showgrid": True, "gridcolor": GRID}
    axis_title(layout, "xaxis", "parameters (millions)")
    axis_title(layout, "yaxis", "lower is better" if about["lower"] else "higher is better")
    return {"data": traces, "layout": layout}
