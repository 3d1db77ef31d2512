"""Parameters against word error rate and emotion accuracy: reported systems, our results, and the frontier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sjepa.analysis.style import GRID, INK, MUTED, PLAIN, RULE, SKY, WARNING, Findings, figure
from sjepa.evaluate import reported
from sjepa.evaluate.metric import SectionKind, column_name
from sjepa.evaluate.superb.metrics import ACCURACY, WER
from sjepa.evaluate.table import build_sections, find_section

TASKS = {
    column_name("asr", WER.name): {"title": "Speech recognition: WER (%), test-clean", "lower": WER.lower},
    column_name("er", ACCURACY.name): {"title": "Emotion: accuracy (%), IEMOCAP", "lower": ACCURACY.lower},
}
PAPER = "S-JEPA (paper)"
COMPACT = 90.0  # millions of parameters: the paper compares systems below this size


def analyse_pareto(results: Sequence[dict[str, Any]]) -> Findings:
    """Collect all systems with a size and a score under the full protocol. The given results are ours."""
    sections = [section for section in build_sections(results) if section.key.kind is SectionKind.SUPERB]
    ours = [row for section in sections for row in section.rows if not row.reported]
    places = [(result["task"], find_section(result)) for result in results]
    other = sorted({f"{task} ({place.title})" for task, place in places if place.kind is not SectionKind.SUPERB})
    tasks: dict[str, Any] = {}
    for column, about in TASKS.items():
        systems = [
            describe_system(r.name, r.millions, r.scores[column], False) for r in reported.SUPERB if column in r.scores
        ]
        systems += [
            describe_system(row.name, row.millions, row.value(column), True) for row in ours if column in row.scores
        ]
        sized = [system for system in systems if system["millions"]]
        on = frontier([(s["millions"], s["score"]) for s in sized], bool(about["lower"]))
        for index, system in enumerate(sized):
            system["frontier"] = index in on
        unsized = [system["name"] for system in systems if not system["millions"]]
        tasks[column] = about | {
            "systems": sized,
            "without_a_size": unsized,
            "compact": compact_region(sized, bool(about["lower"])),
        }
    return {"subject": "pareto", "tasks": tasks, "ours": len(ours), "not_comparable": other}


def compact_region(systems: Sequence[dict[str, Any]], lower: bool) -> dict[str, Any] | None:
    """The gain of S-JEPA below 90 million parameters: our best result, or the paper's if we have none.

    The region reaches from its size to 90 million, and from the best score of the other systems to its own. None if
    there is nothing to compare.
    """
    small = [system for system in systems if system["millions"] < COMPACT]
    ours = [s for s in small if s["ours"]] or [s for s in small if s["name"] == PAPER]
    others = [s["score"] for s in small if not s["ours"] and s["name"] != PAPER]
    if not ours or not others:
        return None
    best = min if lower else max
    system = best(ours, key=lambda s: s["score"])
    prior = best(others)
    return {
        "name": system["name"],
        "from": system["millions"],
        "to": COMPACT,
        "score": system["score"],
        "prior": prior,
        "better": system["score"] < prior if lower else system["score"] > prior,
    }


def describe_system(name: str, millions: float | None, score: float | None, ours: bool) -> dict[str, Any]:
    return {"name": name, "millions": millions and round(millions, 3), "score": score, "ours": ours}


def frontier(points: Sequence[tuple[float, float]], lower: bool) -> set[int]:
    """Indices of the systems on the frontier: no other is at least as small and as good, and better in one of them."""
    costs = [(size, score if lower else -score) for size, score in points]

    def is_beaten(size: float, cost: float) -> bool:
        return any(s <= size and c <= cost and (s, c) != (size, cost) for s, c in costs)

    return {index for index, cost in enumerate(costs) if not is_beaten(*cost)}


def frontier_line(systems: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """The frontier as a step line: a system's score holds until a larger system improves on it."""
    corners = sorted((s["millions"], s["score"]) for s in systems if s["frontier"])
    line: list[tuple[float, float]] = []
    for millions, value in corners:
        if line:
            line.append((millions, line[-1][1]))
        line.append((millions, value))
    return line


def size_axis(systems: Sequence[dict[str, Any]]) -> tuple[float, list[float]]:
    """The left end of the logarithmic axis of millions of parameters, and its ticks."""
    low = 0.7 * min([2.0, *(system["millions"] for system in systems)])
    return low, [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 300) if tick > low]


def draw_pareto(found: Findings, stem: Path) -> None:
    with figure(11, 4.6, stem) as fig:
        for axes, about in zip(fig.subplots(1, 2), found["tasks"].values(), strict=True):
            draw_task(axes, about)
        if not found["ours"]:
            fig.supxlabel(
                "no results of our own yet: run sjepa superb asr and sjepa superb er", color=MUTED, fontsize=8
            )


def draw_task(axes: Any, about: dict[str, Any]) -> None:
    systems = about["systems"]
    line = frontier_line(systems)
    axes.plot(*zip(*line, strict=True), color=INK, lw=1, ls=(0, (5, 3)), label="frontier")
    region = about["compact"]
    if region and region["better"]:
        corners = ([region["from"], region["to"]], region["prior"], region["score"])
        axes.fill_between(*corners, color=SKY, alpha=0.3, lw=0, label=f"gain below {region['to']:g}M")
    kinds = (
        ("reported by others", [s for s in systems if not s["ours"] and s["name"] != PAPER], "o", RULE),
        (PAPER, [s for s in systems if s["name"] == PAPER], "D", WARNING),
        ("measured here", [s for s in systems if s["ours"]], "*", PLAIN),
    )
    for label, group, marker, colour in kinds:
        if group:
            x, y = [s["millions"] for s in group], [s["score"] for s in group]
            axes.plot(x, y, marker, color=colour, ms=13 if marker == "*" else 6, mec="white", label=label)
    low, ticks = size_axis(systems)
    axes.set(xscale="log", xlim=(low, 800), xlabel="parameters (millions)", title=about["title"])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    label_systems(axes, systems)
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.13), ncols=3, columnspacing=1.2)


def label_systems(axes: Any, systems: Sequence[dict[str, Any]]) -> None:
    """Write names next to points: frontier, our and the paper's systems always, others if there is room."""
    from matplotlib.patheffects import withStroke

    low, high = axes.get_ylim()
    named: list[tuple[float, float, float]] = []  # a name's left and right end in millions, and its height
    for system in sorted(systems, key=lambda s: (not s["ours"], s["name"] != PAPER, not s["frontier"])):
        x, y = place = (system["millions"], system["score"])
        strong = system["ours"] or system["frontier"] or system["name"] == PAPER
        # Near the right edge a name goes to the left of its point, so that it stays inside. On the logarithmic axis a
        # letter is about a factor of 1.075 wide, and a name takes a thirtieth of the axis' height.
        left, width = x > 200, 1.075 ** len(system["name"])
        start, end = (x / width, x) if left else (x, x * width)
        crowded = any(start < b and a < end and abs(y - c) < (high - low) / 30 for a, b, c in named)
        if crowded and not strong:
            continue
        named.append((start, end, y))
        size, colour = (7.5, INK) if strong else (6.5, MUTED)
        axes.annotate(
            system["name"],
            place,
            xytext=(-6 if left else 6, 4),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=size,
            color=colour,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
