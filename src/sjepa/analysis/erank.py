"""Effective rank of every layer over training, with the active layer, decay switches and any calibration."""

from pathlib import Path
from typing import Any

from sjepa.analysis.names import calibration_moment
from sjepa.analysis.style import GRID, INK, MARKERS, MASKED, MUTED, RULE, Findings, figure, ramp
from sjepa.errors import UserError
from sjepa.runs.events import active_layers, decay_switches, last_step, phase_spans, select_events
from sjepa.runs.folder import RunFolder


def analyse_erank(run: Path) -> Findings:
    """Read the effective ranks at every layer check, the active layer and the decay switches from metrics.jsonl."""
    events = RunFolder(run).events()
    checks = select_events(events, "layers")
    if not checks:
        raise UserError(
            f"{run} has no layer check yet: effective ranks are logged every phase1.layer_check_every steps"
        )
    return {
        "subject": "erank",
        "steps": [check["step"] for check in checks],
        "phase": [check["phase"] for check in checks],
        "measured": [check["effective_ranks"] for check in checks],
        "smoothed": [check["smoothed"] for check in checks],
        "active": [list(stretch) for stretch in active_layers(events)],
        "decay_switches": [list(switch) for switch in decay_switches(events)],
        "phases": [list(span) for span in phase_spans(events)],
        "last_step": last_step(events),
        "calibration": None,
    }


def draw_erank(found: Findings, stem: Path) -> None:
    """Draw effective ranks over steps, one panel per phase as in the paper, above a strip of the active layer.

    The calibration, if there is one, is a panel on the right.
    """
    calibration = found["calibration"]
    with figure(4.6 * len(found["phases"]) + (3.4 if calibration else 0.6), 4.2, stem) as fig:
        left, right = fig.subfigures(1, 2, width_ratios=(2.6, 1)) if calibration else (fig, None)
        draw_phases(left, found)
        if right is not None:
            draw_calibration(right, calibration)


def draw_phases(fig: Any, found: Findings) -> None:
    """Draw one panel per phase over its own steps. All panels share the scale of ranks."""
    phases = found["phases"]
    rows = fig.subplots(2, len(phases), sharex="col", sharey="row", height_ratios=(9, 1), squeeze=False)
    for index, (number, start, end) in enumerate(phases):
        axes, strip = rows[0][index], rows[1][index]
        draw_effective_ranks(axes, found, number, start, end)
        draw_active(strip, found, start, end)
        letter = f"({'abcdefgh'[index]}) " if len(phases) <= 8 else ""
        axes.set_title(f"{letter}Phase {number}")
    rows[0][0].set_ylabel("effective rank")
    rows[1][0].set_ylabel("active", rotation=0, ha="right", va="center")
    rows[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    if found["decay_switches"]:
        fig.supxlabel(
            "dotted: the target encoder's decay switches to the value next to the line", color=MUTED, fontsize=8
        )


def draw_effective_ranks(axes: Any, found: Findings, phase: int, first: int, last: int) -> None:
    """Draw the measurements of a phase as dots and their running mean as lines, and where the decay switches."""
    checks = [index for index, number in enumerate(found["phase"]) if number == phase]
    steps = [found["steps"][index] for index in checks]
    for layer, colour in enumerate(ramp(len(found["smoothed"][-1]))):
        axes.plot(steps, [found["measured"][i][layer] for i in checks], ".", color=colour, alpha=0.3, ms=4)
        values = [found["smoothed"][i][layer] for i in checks]
        axes.plot(steps, values, color=colour, label=f"layer {layer}", marker=MARKERS[layer % len(MARKERS)], ms=3.5)
    for step, decay in (switch for switch in found["decay_switches"] if first < switch[0] <= last):
        axes.axvline(step, color=RULE, lw=0.8, ls=(0, (2, 2)), zorder=0)
        axes.text(step, 0.01, f" {decay:g}", transform=axes.get_xaxis_transform(), color=MUTED, fontsize=7, rotation=90)
    axes.grid(color=GRID, lw=0.7, axis="y")


def draw_active(strip: Any, found: Findings, first: int, last: int) -> None:
    """Draw the active layer over the steps of a phase, pale while the targets do not use it yet."""
    layers = len(found["smoothed"][-1])
    colours = ramp(layers)
    for start, end, layer, used in found["active"]:
        start, end = max(start, first), min(end, last)
        if start >= end:
            continue
        strip.axvspan(start, end, color=colours[layer], alpha=1 if used else 0.35, lw=0)
        if end - start > 0.05 * (last - first):
            pale = not used or layer > 0.7 * (layers - 1)
            text = {"ha": "center", "va": "center", "fontsize": 8, "color": INK if pale else "white"}
            strip.text((start + end) / 2, 0.5, str(layer), **text)
    strip.set(ylim=(0, 1), yticks=[], xlim=(first, last), xlabel="step")
    strip.xaxis.set_major_locator(steps_locator())
    strip.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def steps_locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4, integer=True)


def draw_calibration(fig: Any, calibration: dict[str, Any]) -> None:
    axes = fig.subplots()
    effective_ranks, scores = calibration["effective_ranks"], calibration["scores"]
    for layer, colour in enumerate(ramp(len(effective_ranks))):
        axes.plot(effective_ranks[layer], scores[layer], MARKERS[layer % len(MARKERS)], color=colour, ms=8)
        axes.annotate(
            str(layer), (effective_ranks[layer], scores[layer]), xytext=(7, 3), textcoords="offset points", color=INK
        )
    best = min(range(len(scores)), key=scores.__getitem__)
    axes.plot(effective_ranks[best], scores[best], "o", ms=16, mfc="none", mec=MASKED, mew=1.2)
    when = calibration_moment(calibration)
    axes.set(xlabel=f"effective rank {when}", ylabel=f"{calibration['metric'].upper()} (%), lower is better")
    axes.set_title(f"rank correlation {calibration['spearman']:+.2f} (p = {calibration['p']:.2g})")
