"""Effective rank of every layer over training, with what acted on it, and its calibration where there is one."""

from pathlib import Path
from typing import Any

from sjepa.analysis.style import INK, MASKED, MUTED, RULE, SHADE, Found, figure, ramp
from sjepa.errors import UserError
from sjepa.runs.events import active_layers, decay_switches, last_step, phase_spans, select_events
from sjepa.runs.folder import RunFolder


def analyse_erank(run: Path) -> Found:
    """Effective ranks of every layer at every check, the active layer and the decay's switches, from metrics.jsonl."""
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


def draw_erank(found: Found, stem: Path) -> None:
    """Effective ranks over steps above a strip of the active layer; the calibration beside it."""
    calibration = found["calibration"]
    with figure(10.5 if calibration else 7.5, 4.2, stem) as fig:
        left, right = fig.subfigures(1, 2, width_ratios=(1.9, 1)) if calibration else (fig, None)
        draw_effective_ranks(left, found)
        if right is not None:
            draw_calibration(right, calibration)


def draw_effective_ranks(fig: Any, found: Found) -> None:
    axes, strip = fig.subplots(2, 1, sharex=True, height_ratios=(9, 1))
    steps, layers = found["steps"], len(found["smoothed"][-1])
    colours = ramp(layers)
    for layer, colour in enumerate(colours):
        axes.plot(steps, [check[layer] for check in found["measured"]], ".", color=colour, alpha=0.3, ms=4)
        values = [check[layer] for check in found["smoothed"]]
        axes.plot(steps, values, color=colour, label=f"layer {layer}", marker=MARKERS[layer % len(MARKERS)], ms=3.5)
    for index, (number, start, end) in enumerate(found["phases"]):
        if index % 2:
            axes.axvspan(start, end, color=SHADE, zorder=0)
        axes.text(start, 1.01, f"  Phase {number}", transform=axes.get_xaxis_transform(), color=MUTED)
    for step, decay in found["decay_switches"]:
        axes.axvline(step, color=RULE, lw=0.8, ls=(0, (2, 2)), zorder=0)
        axes.text(step, 0.01, f" {decay:g}", transform=axes.get_xaxis_transform(), color=MUTED, fontsize=7, rotation=90)
    axes.set_ylabel("effective rank")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    for start, end, layer, used in found["active"]:
        strip.axvspan(start, end, color=colours[layer], alpha=1 if used else 0.35, lw=0)
        if end - start > 0.05 * found["last_step"]:
            pale = not used or layer > 0.7 * (layers - 1)
            text = {"ha": "center", "va": "center", "fontsize": 8, "color": INK if pale else "white"}
            strip.text((start + end) / 2, 0.5, str(layer), **text)
    switches = "; dotted: the target encoder's decay switches to the value beside" if found["decay_switches"] else ""
    strip.set(ylim=(0, 1), yticks=[], xlim=(0, found["last_step"]), xlabel=f"step{switches}")
    strip.set_ylabel("active", rotation=0, ha="right", va="center")
    strip.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


MARKERS = "osD^vP*X"  # so that layers can be told apart in grey


def draw_calibration(fig: Any, calibration: dict[str, Any]) -> None:
    axes = fig.subplots()
    effective_ranks = calibration.get("effective_ranks", calibration.get("ranks", []))  # ranks: in older files
    scores = calibration["scores"]
    for layer, colour in enumerate(ramp(len(effective_ranks))):
        axes.plot(effective_ranks[layer], scores[layer], MARKERS[layer % len(MARKERS)], color=colour, ms=8)
        axes.annotate(
            str(layer), (effective_ranks[layer], scores[layer]), xytext=(7, 3), textcoords="offset points", color=INK
        )
    best = min(range(len(scores)), key=scores.__getitem__)
    axes.plot(effective_ranks[best], scores[best], "o", ms=16, mfc="none", mec=MASKED, mew=1.2)
    axes.set(
        xlabel="effective rank at the end of phase 1", ylabel=f"{calibration['metric'].upper()} (%), lower is better"
    )
    axes.set_title(f"rank correlation {calibration['spearman']:+.2f} (p = {calibration['p']:.2g})")
