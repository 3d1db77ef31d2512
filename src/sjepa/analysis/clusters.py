"""The components: the share of frames of each over training, which die or revive, and which phones they hold."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sjepa.analysis.speech import read_usable
from sjepa.analysis.style import GRID, MUTED, TARGET, WARNING, Findings, absolute_path, figure
from sjepa.audio.frames import describe_too_short, frame_count
from sjepa.audio.io import BadAudioError, show_path
from sjepa.evaluate.agreement import measure_agreement
from sjepa.evaluate.alignments import SILENCE
from sjepa.evaluate.labelled import LabelledUtterance
from sjepa.evaluate.superb.records import sample_evenly
from sjepa.runs.events import DEAD_SHARE, Event, phase_start, select_events
from sjepa.runs.folder import RunFolder

if TYPE_CHECKING:  # it needs torch, and findings are drawn without
    from sjepa.analysis.restored_run import RestoredRun

# The colours of the heat map, from dead components to 16 times an even share: log2 of the share over an even one.
LOWEST, HIGHEST = math.log2(DEAD_SHARE), 4.0
TICKS = {LOWEST: "dead", -3.0: "1/8", 0.0: "even", 3.0: "8×"}


def analyse_clusters(run: Path) -> Findings:
    """Read the logged shares of the components, separately for each phase, since each phase has its own components."""
    found = occupancies(RunFolder(run).events())
    missing = None if found else "no shares of components are logged yet: every tenth log line of training has them"
    return {"subject": "clusters", "occupancy": found, "missing": missing, "phones": None}


def occupancies(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The occupancy of every phase that logged shares."""
    logged = select_events(events, "clusters")
    return [
        occupancy([event for event in logged if event["phase"] == phase], phase_start(events, phase))
        for phase in sorted({event["phase"] for event in logged})
    ]


def occupancy(events: Sequence[Event], start: int = 0) -> dict[str, Any]:
    """Shares over a phase that began at `start`, and how many components are dead, have died or have revived."""
    shares = np.array([event["share"] for event in events], float)  # (times, K)
    dead = shares < DEAD_SHARE / shares.shape[1]
    died, born = dead[1:] & ~dead[:-1], ~dead[1:] & dead[:-1]
    perplexity = np.exp(-(shares * np.log(np.maximum(shares, 1e-30))).sum(1))
    return {
        "phase": events[0]["phase"],
        "components": shares.shape[1],
        "start": start,
        "steps": [event["step"] for event in events],
        "shares": np.round(shares, 7).tolist(),
        "dead": dead.sum(1).tolist(),
        "died": [0, *died.sum(1).tolist()],
        "born": [0, *born.sum(1).tolist()],
        "perplexity": np.round(perplexity, 2).tolist(),
        "dead_at_the_end": np.flatnonzero(dead[-1]).tolist(),
    }


def corpus_inputs(data: Path, subset: str, utterances: int, step: int | None = None) -> dict[str, Any]:
    """The inputs that determine the phones of the clusters, as the JSON keeps them."""
    return {"data": absolute_path(data), "subset": subset, "utterances": utterances, "step": step}


def analyse_phones(run: "RestoredRun", corpus: Sequence[LabelledUtterance], utterances: int = 500) -> dict[str, Any]:
    """Sum the target's posteriors over labelled frames to see which phones every component holds."""
    chosen = sample_evenly(list(corpus), utterances)
    labelled = {phone for item in chosen for phone in (item.phones or [label for _, _, label in item.segments])}
    names = sorted(labelled | {SILENCE})  # audio after the last segment is silence
    number = {name: index for index, name in enumerate(names)}
    joint = np.zeros((run.components, len(names)))
    best, spoken = [], []
    for item, samples in read_usable(chosen, read_frames, "Phones of clusters"):
        target = run.targets(samples).cpu().numpy()
        labels = item.frame_phones(len(target))
        order = np.array([number[label] for label in labels])
        np.add.at(joint.T, order, target)
        best.append(target.argmax(1))
        spoken.append(labels)
    present = np.flatnonzero(joint.any(0))
    return (
        run.about
        | summarise_phones(joint[:, present], [names[i] for i in present])
        | {
            "utterances": len(best),
            "frames": int(sum(map(len, best))),
            "agreement": {
                k: round(v, 4) for k, v in measure_agreement(np.concatenate(best), np.concatenate(spoken)).items()
            },
        }
    )


def read_frames(item: LabelledUtterance) -> np.ndarray:
    """Read an utterance. Raise BadAudioError if it is too short for a frame."""
    samples = item.utterance.read()
    if not frame_count(len(samples)):
        raise BadAudioError(f"{show_path(item.utterance.path)}: {describe_too_short(len(samples))}")
    return samples


def summarise_phones(joint: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Turn frame counts (K, phones) into shares within each cluster, with clusters sorted by their main phone."""
    frames = joint.sum(1)
    share = joint / np.maximum(frames, 1e-12)[:, None]
    main = joint.argmax(1)
    used = np.flatnonzero(frames >= 1)
    common = np.argsort(-joint.sum(0), kind="stable")  # phones, most frequent first
    rank = np.empty(len(names), int)
    rank[common] = np.arange(len(names))
    order = used[np.lexsort((-share[used, main[used]], rank[main[used]]))]
    return {
        "phones": [names[i] for i in common],
        "clusters": order.tolist(),
        "frames_of_cluster": np.round(frames[order], 1).tolist(),
        "share": np.round(share[order][:, common], 4).tolist(),
        "empty": int((frames < 1).sum()),
        "names": {int(k): [names[main[k]], round(float(share[k, main[k]]), 3)] for k in order},
    }


def draw_clusters(found: Findings, stem: Path) -> None:
    """Draw the occupancy of each phase as a heat map above its dead components, then the phones of the clusters."""
    parts, phones = found["occupancy"], found["phones"]
    columns = max(1, len(parts))
    above, below = 4.4 if parts else 0.6, 1.2 + 0.12 * len(phones["phones"]) if phones else 0.0
    with figure(10.5, above + below, stem) as fig:
        rows = fig.subfigures(2, 1, height_ratios=(above, below)) if phones else [fig]
        if parts:
            axes = rows[0].subplots(2, columns, height_ratios=(3, 1), sharex="col", squeeze=False)
            for column, part in enumerate(parts):
                draw_occupancy(axes[0][column], axes[1][column], part, rows[0])
        else:
            rows[0].text(0.02, 0.5, found["missing"], color=MUTED, va="center")
        if phones:
            draw_phones(rows[1], phones)


def step_edges(part: dict[str, Any]) -> list[int]:
    """Edges of the heat map's columns."""
    return [part["start"], *part["steps"]]


def heat_map(part: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The values of the heat map (K, times), and the component of each row, the largest share at the end first."""
    shares = np.array(part["shares"]) * part["components"]  # 1 is an even share
    order = np.argsort(-shares[-1], kind="stable")
    return np.clip(np.log2(np.maximum(shares[:, order], 1e-9)), LOWEST, HIGHEST).T, order


def draw_occupancy(top: Any, bottom: Any, part: dict[str, Any], fig: Any) -> None:
    values, _ = heat_map(part)
    steps = np.array(part["steps"], float)
    look = {"cmap": "cividis", "vmin": LOWEST, "vmax": HIGHEST, "rasterized": True}
    image = top.pcolormesh(step_edges(part), np.arange(part["components"] + 1), values, **look)
    top.set(ylabel="components, largest share at the bottom", title=f"Phase {part['phase']}: share of frames")
    bar = fig.colorbar(image, ax=top, pad=0.01)
    bar.set_ticks(list(TICKS), labels=list(TICKS.values()))
    bottom.step(steps, part["dead"], where="post", color=WARNING, label="dead")
    for kind, marker, colour in (("died", "v", WARNING), ("born", "^", TARGET)):
        some_did = [(step, number) for step, number in zip(steps, part[kind], strict=True) if number]
        bottom.plot([s for s, _ in some_did], [n for _, n in some_did], marker, color=colour, ms=5, label=kind)
    bottom.set(xlabel="step", ylabel="components", ylim=(0, max(4, 1.2 * max(part["dead"]))))
    bottom.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    bottom.grid(color=GRID, lw=0.7)
    bottom.legend(loc="upper right", ncols=3)


def draw_phones(fig: Any, phones: dict[str, Any]) -> None:
    axes = fig.subplots()
    share = np.array(phones["share"]).T
    image = axes.imshow(share, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(range(len(phones["phones"])), phones["phones"], fontsize=7)
    many = len(phones["clusters"]) > 120
    axes.set_xticks([] if many else range(len(phones["clusters"])), [] if many else phones["clusters"])
    axes.tick_params(axis="x", labelsize=5.5, rotation=90, length=0)
    axes.set_xlabel(f"{len(phones['clusters'])} clusters sorted by their main phone; {phones['empty']} are empty")
    purity = phones["agreement"]["phone_purity"]
    axes.set_title(
        f"Which phones each cluster holds: phone purity {purity:.2f}, PNMI {phones['agreement']['pnmi']:.2f}"
    )
    fig.colorbar(image, ax=axes, label="share of the cluster", pad=0.01)
