"""Draw the figures of the studies: python benchmarks/study_figures.py -> docs/study*.png"""

import statistics
from pathlib import Path

import iban
from study import DOCS, STUDIES, Found, format_number, load_systems, phones

from sjepa.analysis.style import GRID, INK, MASKED, MUTED, PREDICTOR, RULE, TARGET, VISIBLE, WARNING, figure, ramp

MEASURE = "phones, linear probe, held-out speakers (%)"
COLOURS = {
    "headline": INK,
    "no-dropout": MASKED,
    "soft": TARGET,
    "hard": MASKED,
    "hubert": VISIBLE,
    "frozen": PREDICTOR,
    "paper": INK,
}
"""Runs whose curves are drawn. Curves of their variants would overlap."""


def draw_dots(kept: dict[str, list[Found]], stem: Path) -> None:
    """Draw the phone accuracy of every system: one dot per seed, open after phase 1, grey if untrained."""
    scores = {name: [score for run in runs if (score := phones(run)) is not None] for name, runs in kept.items()}
    order = sorted((name for name in scores if scores[name]), key=lambda name: statistics.mean(scores[name]))
    with figure(7.2, 0.6 + 0.25 * len(order), stem) as fig:
        axes = fig.subplots()
        for place, name in enumerate(order):
            colour = TARGET if "curve" in kept[name][0] or name.endswith("phase1") else RULE
            fill = "white" if name.endswith("phase1") else colour
            axes.plot(scores[name], [place] * len(scores[name]), "o", ms=6, color=colour, mfc=fill)
            mean = format_number(statistics.mean(scores[name]))
            axes.annotate(
                mean, (max(scores[name]), place), (8, 0), textcoords="offset points", va="center", fontsize=8.5
            )
        axes.set_yticks(range(len(order)), order)
        axes.set(xlabel=MEASURE, ylim=(-0.7, len(order) - 0.3))
        axes.margins(x=0.08)
        axes.grid(color=GRID)
        axes.set_axisbelow(True)


def draw_curves(kept: dict[str, list[Found]], stem: Path) -> None:
    """Draw masked accuracy and target perplexity over training, and the effective ranks of the layers."""
    trained = {name: kept[name][0] for name in COLOURS if "curve" in kept.get(name, [{}])[0]}
    with figure(11, 3.4, stem) as fig:
        accuracy, perplexity, ranks = fig.subplots(1, 3)
        for name, run in trained.items():
            place = [point["step"] / run["curve"][-1]["step"] for point in run["curve"]]  # runs differ in length
            for axes, values in (
                (accuracy, [100 * point["accuracy_masked"] for point in run["curve"]]),
                (perplexity, [point["target_perplexity"] for point in run["curve"]]),
            ):
                axes.plot(place, values, color=COLOURS[name], label=name)
        accuracy.set(title="Masked frames predicted (%)", xlabel="share of the run")
        accuracy.legend(fontsize=7.5)
        perplexity.set(title="Perplexity of the targets", xlabel="share of the run")
        shown = next(name for name in ("paper", "soft", "headline") if name in trained)
        run = trained[shown]
        steps = [check["step"] for check in run["ranks"]]
        nearest = [min(run["curve"], key=lambda point, at=at: abs(point["step"] - at)) for at in steps]
        for layer, colour in enumerate(ramp(len(run["ranks"][0]["ranks"]))):
            values = [check["ranks"][layer] for check in run["ranks"]]
            active = [place for place, point in enumerate(nearest) if point["active_layer"] == layer]
            ranks.plot(steps, values, marker="o", ms=4, markevery=active, color=colour, label=f"layer {layer}")
        ranks.set(title=f"Effective rank, {shown} (dots: active)", xlabel="step")
        ranks.locator_params(axis="x", nbins=5)
        ranks.xaxis.set_major_formatter("{x:,.0f}")
        ranks.legend(fontsize=7.5)
        for axes in (accuracy, perplexity, ranks):
            axes.grid(color=GRID)


def draw_entropies(kept: dict[str, list[Found]], stem: Path) -> None:
    """Draw the distribution of entropy over unmasked frames, of the targets and of the head on the encoder.

    Each recipe uses its first seed that has the data.
    """
    measured = {name: [run["entropy"] for run in runs if run.get("entropy")] for name, runs in kept.items()}
    parts = [(name, found[0]) for name, found in measured.items() if found]
    if not parts:
        return
    rows = -(-len(parts) // 3)
    with figure(9.0, 2.6 * rows, stem) as fig:
        panels = fig.subplots(rows, 3, squeeze=False, sharex=True, sharey=True)
        for spare in panels.flat[len(parts) :]:
            spare.remove()
        for axes in panels[:, 0]:
            axes.set_ylabel("share of frames")
        for axes, (name, found) in zip(panels.flat, parts, strict=False):
            for which, label, colour in (("target", "target", TARGET), ("visible", "head", PREDICTOR)):
                part = found["distributions"][which]
                share = [count / part["frames"] for count in part["counts"]]
                axes.stairs(share, found["edges"], color=colour, lw=1.4, label=f"{label}: {part['mean']:.2f} bits")
            for mark in found["marks"]:
                axes.axvline(mark, color=WARNING, lw=0.6, ls=":")
            axes.set(title=name, yscale="log", xlabel="bits")
            axes.tick_params(labelbottom=True, labelleft=True)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.legend(fontsize=7, labelcolor=MUTED)


def draw_errors(stem: Path) -> None:
    """Draw the character error rates on Iban: a row for each encoder with all numbers, a dot for each amount."""
    rates = {name: found for name, found in iban.load_rates("cer").items() if found.keys() == iban.AMOUNTS.keys()}
    order = sorted(rates, key=lambda name: -rates[name]["10"])
    with figure(9.0, 0.8 + 0.38 * len(order), stem) as fig:
        axes = fig.subplots()
        for (amount, shown), colour in zip(iban.AMOUNTS.items(), ramp(len(iban.AMOUNTS)), strict=True):
            dots = [(rates[name][amount], place) for place, name in enumerate(order)]
            axes.plot(*zip(*dots, strict=True), "o", ms=6, color=colour, label=shown)
            for rate, place in dots:
                axes.annotate(
                    format_number(rate), (rate, place), (0, 6), textcoords="offset points", ha="center", fontsize=8
                )
        axes.set_yticks(range(len(order)), [iban.ROWS[name].strip("*") for name in order])
        axes.set(xlabel="character error rate (%)", xlim=(0, None), ylim=(-0.5, len(order) - 0.3))
        axes.legend(fontsize=7.5, title="transcripts", title_fontsize=7.5)
        axes.grid(color=GRID)
        axes.set_axisbelow(True)


def main() -> None:
    draw_errors(DOCS / "study-iban")
    for study in STUDIES.values():
        kept = load_systems(study)
        if not kept:
            continue  # not collected yet
        draw_dots(kept, DOCS / study.name)
        draw_curves(kept, DOCS / f"{study.name}-curves")
        draw_entropies(kept, DOCS / f"{study.name}-entropy")
    for drawn in DOCS.glob("study*.svg"):
        drawn.unlink()  # Markdown shows the PNG


if __name__ == "__main__":
    main()
