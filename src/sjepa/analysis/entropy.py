"""Entropy of every frame for both paths and their target: is the softness in the target, or only in the prediction?"""

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sjepa.analysis.modes import Grid, count_modes, make_grid
from sjepa.analysis.names import LABELS, PATHS
from sjepa.analysis.speech import read_usable
from sjepa.analysis.style import GRID, INK, MUTED, PREDICTOR, RULE, TARGET, VISIBLE, Findings, absolute_path, figure
from sjepa.data.opening import open_corpus

if TYPE_CHECKING:  # it needs torch, and findings are drawn without
    from sjepa.analysis.restored_run import RestoredRun

MARKS = (0.5, 1.0, 2.0)  # bits: 1 is an even tie of two components, 2 of four
CONFIDENT = 0.3
JOINT_BINS = 60
SUBJECTS = {"visible": "The cluster head at visible frames", "masked": "The predictor at masked frames"}
WHOLE = 1e9  # seconds: do not cut files, so that an utterance of a plain folder is a whole file
COLOURS = {"visible": VISIBLE, "masked": PREDICTOR, "target": TARGET, "plain": TARGET}


def analyse_entropy(run: "RestoredRun", data: str, utterances: int = 500, seed: int = 0) -> Findings:
    """Compute entropies on a sample of whole utterances.

    The distributions are the cluster head's at visible frames, the predictor's at masked frames, and their target.
    """
    from sjepa.analysis.restored_run import entropy_bits

    corpus = open_corpus(data, WHOLE, "none", 0.0)
    order = np.random.default_rng(seed).permutation(len(corpus))[:utterances]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in LABELS}
    for _, samples in read_usable(order.tolist(), corpus.read, "Entropy of frames"):
        pieces = list(run(samples.astype(np.float32) / 32768.0))
        for name in LABELS:
            kept = [part for piece in pieces if (part := getattr(piece, name)) is not None]
            if kept:
                parts[name].append(np.concatenate([entropy_bits(part) for part in kept]))
    used = len(parts["target"])
    facts = {"data": data, "utterances": used, "left_out": len(order) - used, "seed": seed}
    made_from = entropy_inputs(data, utterances, seed, run.requested_step)
    return {"subject": "entropy", "run": run.about | facts, "made_from": made_from} | describe_entropies(
        parts, run.components, seed
    )


def entropy_inputs(data: str, utterances: int, seed: int, step: int | None) -> dict[str, Any]:
    """The inputs that determine the entropies, as the JSON keeps them."""
    return {"data": absolute_path(data), "utterances": utterances, "seed": seed, "step": step}


def describe_entropies(parts: dict[str, list[np.ndarray]], components: int, seed: int = 0) -> Findings:
    """Summarise entropies per utterance: histograms, shares, modes, and joint histograms with the target."""
    limit = math.log2(components)
    edges = np.linspace(0, limit, round(limit / 0.05) + 1)
    curves = {
        name: describe_distribution(found, edges, seed) | {"label": LABELS[name]}
        for name, found in parts.items()
        if found
    }
    joint = {path: compare_with_target(parts[path], parts["target"], limit) for path in PATHS if parts.get(path)}
    return {
        "limit_bits": round(limit, 4),
        "marks": list(MARKS),
        "edges": np.round(edges, 4).tolist(),
        "distributions": curves,
        "joint": joint,
        "answer": " ".join(describe_softness(path, both) for path, both in joint.items()),
    }


def compare_with_target(predicted: list[np.ndarray], targets: list[np.ndarray], limit: float) -> dict[str, Any]:
    """Compare a path with its target frame by frame: their joint histogram, and how often both are soft."""
    p, q = np.concatenate(predicted), np.concatenate(targets)
    bins = np.linspace(0, limit, JOINT_BINS + 1)
    soft = p > 1.0
    return {
        "edges": np.round(bins, 4).tolist(),
        "counts": np.histogram2d(q, p, bins=(bins, bins))[0].astype(int).tolist(),
        "correlation": round(float(np.corrcoef(p, q)[0, 1]), 4) if p.std() > 1e-9 and q.std() > 1e-9 else None,
        "target_soft_where_path_is": round(float((q[soft] > 1.0).mean()), 4) if soft.any() else None,
        "target_above_1_bit": round(float((q > 1.0).mean()), 4),
        "path_above_1_bit": round(float(soft.mean()), 4),
    }


def describe_distribution(utterances: list[np.ndarray], edges: np.ndarray, seed: int) -> dict[str, Any]:
    values = np.concatenate(utterances)
    modes = count_modes(utterances, seed)
    grid = make_grid(values)
    found: dict[str, Any] = {
        "frames": len(values),
        "mean": round(float(values.mean()), 4),
        "median": round(float(np.median(values)), 4),
        "below_confident": round(float((values < CONFIDENT).mean()), 4),
        "above": {f"{mark:g}": round(float((values > mark).mean()), 4) for mark in MARKS},
        "counts": np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0].tolist(),
        "modality": modes,
    }
    if modes["test"] is not None:
        found["density"] = smooth_curve(grid, values, modes["bandwidth"], edges)
    return found


def smooth_curve(grid: Grid, values: np.ndarray, bandwidth: float, edges: np.ndarray) -> list[float]:
    """The kernel density estimate (per bit) at the histogram's centres."""
    centres = (edges[:-1] + edges[1:]) / 2
    return np.round(np.interp(centres, grid.centres, grid.density(grid.counts(values), bandwidth)), 5).tolist()


def describe_softness(path: str, both: dict[str, Any]) -> str:
    """State in a sentence whether the softness is in the prediction or in the target."""
    soft, target = both["path_above_1_bit"], both["target_above_1_bit"]
    shared, who = both["target_soft_where_path_is"], SUBJECTS[path]
    if soft < 0.01:
        return f"{who} is hardly ever soft: above 1 bit at {soft:.1%} of the frames, its target at {target:.1%}."
    where = (
        "the softness is in the prediction, not in the target"
        if shared < 0.1
        else "the target shares the softness"
        if shared > 0.5
        else "the target shares a part of the softness"
    )
    return (
        f"{who} is above 1 bit at {soft:.1%} of the frames, its target at {target:.1%}. Among the frames with a soft "
        f"prediction, {shared:.1%} also have a soft target: {where}."
    )


def describe_modes(modality: dict[str, Any]) -> str:
    """State where the density has its maxima, and whether the test rejects a single mode."""
    places, test = ", ".join(f"{each['bits']:.2f}" for each in modality["modes"]), modality["test"]
    if test is None:
        return f"one value, {places} bits"
    several, rejected = len(modality["modes"]) > 1, test["p"] < 0.05
    maxima = f"{len(modality['modes'])} clear {'maxima' if several else 'maximum'} at {places} bits"
    joint = "; the" if several == rejected else ", but the"
    chance = f"p = {test['p']:.2g}" if test["p"] else "p < 0.001"
    return f"{maxima}{joint} dip test {'rejects' if rejected else 'does not reject'} a single mode ({chance})"


def draw_entropy(found: Findings, stem: Path) -> None:
    """Draw the histograms below each other, and the joint histograms on the right."""
    curves = found["distributions"]
    with figure(10.5, 0.9 + 1.7 * len(curves), stem) as fig:
        left, right = fig.subfigures(1, 2, width_ratios=(1.35, 1))
        draw_histograms(left, found, upper_limit(found))
        rows = np.atleast_1d(right.subfigures(len(found["joint"]), 1))
        for part, path in zip(rows, found["joint"], strict=True):
            draw_joint(part, found, path, upper_limit(found))


def upper_limit(found: Findings) -> float:
    """Upper end of the entropy axis, in whole bits."""
    edges, counts = np.array(found["edges"]), [np.array(c["counts"]) for c in found["distributions"].values()]
    last = max(int(np.flatnonzero(each)[-1]) for each in counts) + 1
    return float(min(max(found["marks"][-1] + 1, math.ceil(edges[last])), edges[-1]))


def draw_histograms(fig: Any, found: Findings, most: float) -> None:
    curves, edges = found["distributions"], np.array(found["edges"])
    rows = np.atleast_1d(fig.subplots(len(curves), 1, sharex=True))
    for axes, (name, curve) in zip(rows, curves.items(), strict=True):
        share = np.array(curve["counts"]) / max(1, curve["frames"])
        pale = 0.3 if name == "plain" else 0.6
        axes.stairs(share, edges, fill=True, color=COLOURS[name], alpha=pale, lw=0)
        if "density" in curve:
            centres = (edges[:-1] + edges[1:]) / 2
            axes.plot(centres, np.array(curve["density"]) * (edges[1] - edges[0]), color=INK, lw=1)
        for mark in found["marks"]:
            axes.axvline(mark, color=RULE, lw=0.9, ls=(0, (3, 3)), zorder=0)
        axes.set(xlim=(0, most), yscale="log", ylim=(max(1e-5, 0.5 / max(1, curve["frames"])), 4))
        axes.set_yticks([1, 0.1, 0.01, 0.001], ["100%", "10%", "1%", "0.1%"])
        axes.minorticks_off()
        axes.set_title(f"{curve['label'].capitalize()}: {curve['above']['1']:.1%} of frames above 1 bit")
        words = {"transform": axes.transAxes, "ha": "right", "va": "top", "color": MUTED, "fontsize": 8}
        axes.text(0.995, 0.97, textwrap.fill(describe_modes(curve["modality"]), 56), **words)
    rows[-1].set_xlabel("entropy of a frame in bits; dashed: 0.5, 1 (a tie of two) and 2 (of four)")
    fig.supylabel(f"share of {curves['target']['frames']:,} frames", color=MUTED, fontsize=9)


def draw_joint(fig: Any, found: Findings, path: str, most: float) -> None:
    from matplotlib.colors import LogNorm

    axes = fig.subplots()
    joint, bins = (np.array(found["joint"][path][name]) for name in ("counts", "edges"))
    drawn = np.ma.masked_equal(joint, 0).T
    image = axes.pcolormesh(bins, bins, drawn, cmap="cividis_r", norm=LogNorm(1, max(2, joint.max())), rasterized=True)
    axes.axline((0, 0), slope=1, color=RULE, lw=0.8)
    for mark in found["marks"]:
        axes.axvline(mark, color=GRID, lw=0.8, zorder=0)
        axes.axhline(mark, color=GRID, lw=0.8, zorder=0)
    axes.set(xlabel="target (bits)", ylabel="path (bits)", xlim=(0, most), ylim=(0, most), aspect="equal")
    axes.set_title(LABELS[path].capitalize())
    bar = fig.colorbar(image, cax=axes.inset_axes((1.03, 0, 0.04, 1)), label="frames")  # as tall as the plot
    ticks = [10**power for power in range(7) if 10**power <= joint.max()]
    bar.set_ticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    bar.minorticks_off()
