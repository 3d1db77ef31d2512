"""Error rates and probes over training, measured on the checkpoints of a run."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sjepa.analysis.style import GRID, MARKERS, MUTED, SHADE, Findings, figure, file_name, ramp
from sjepa.device import Device
from sjepa.errors import UserError
from sjepa.evaluate.corpus_hash import hash_corpus
from sjepa.evaluate.labelled import corpus_name, read_labelled, report_missing_phones
from sjepa.evaluate.metric import Better
from sjepa.evaluate.results import find_results, separate_labels, write_results
from sjepa.evaluate.table import build_sections
from sjepa.progress import say
from sjepa.runs.events import phase_spans
from sjepa.runs.folder import RunFolder


def probe_checkpoints(
    run: Path, data: Path, *, subset: str, alignments: Path | None, frames: int, seed: int, device: Device
) -> None:
    """Probe every checkpoint of a run, as `sjepa probe --step` does. Skip those that were probed before."""
    from sjepa.evaluate.probing import run_probes
    from sjepa.evaluate.upstream import load_upstream

    folder = RunFolder(run)
    if not folder.checkpoint_steps:
        raise UserError(f"{run} has no checkpoint yet: train.checkpoint_every writes them, train.keep_every keeps them")
    corpus = read_labelled(data, subset, phones=False, alignments=alignments)
    report_missing_phones(corpus, data, subset, alignments)
    where, labels = corpus_name(data, subset), hash_corpus(corpus)
    for step in sorted(folder.checkpoint_steps):
        upstream = load_upstream(str(run), device, step=step)
        options = f"frames-{frames}-seed-{seed}" + (f"-alignments-{alignments.name}" if alignments else "")
        out = separate_labels(folder.results / "progress" / file_name(where) / f"{upstream.name}-{options}", labels)
        probed = find_results([out]) if out.is_dir() else []
        if any(found["encoder"]["fingerprint"] == upstream.fingerprint for found in probed):
            say(f"Step {step:,} was probed before: {out}")
            continue
        write_results(out, run_probes(upstream, corpus, where, labels, layer="last", frames=frames, seed=seed))


def analyse_progress(run: Path, places: Sequence[Path] = ()) -> Findings:
    """Collect scores over steps from all results of the run's checkpoints, in its folder and in `places`."""
    folder = RunFolder(run)
    folder.require()
    steps: dict[str, int] = {}
    measured = []
    for results in find_results([*([folder.results] if folder.results.is_dir() else []), *places]):
        name, step = results["encoder"]["name"], results["encoder"].get("step")
        if step is not None and name == f"{folder.name}-step-{step}":
            steps[name] = int(step)
            measured.append(results)
    curves: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    better: dict[tuple[str, str], Better] = {}
    for section in build_sections(measured, with_reported=False, across_encoders=True):
        for row in section.rows:
            for column, value in row.values.items():
                key = (f"{column}{row.detail}", section.key.data)
                curves[key][steps[row.encoder]] = value
                better[key] = section.metrics[column].better
    if not curves:
        raise UserError(
            f"{run} has no results of its checkpoints: give --data to probe them all, or evaluate some with "
            f"`sjepa superb TASK --encoder {run} --step N`"
        )
    return {
        "subject": "progress",
        "phases": [list(span) for span in phase_spans(folder.events())] if folder.log.is_file() else [],
        "curves": [
            {
                "name": name,
                "corpus": corpus,
                "better": better[name, corpus].value,
                "points": [[step, value] for step, value in sorted(points.items())],
            }
            for (name, corpus), points in sorted(curves.items())
        ],
    }


def name_curves(curves: Sequence[dict[str, Any]]) -> list[str]:
    """Name each curve, with its corpus if there are several."""
    several = len({curve["corpus"] for curve in curves if curve["corpus"]}) > 1
    return [f"{c['name']}, {c['corpus']}" if several and c["corpus"] else c["name"] for c in curves]


def draw_progress(found: Findings, stem: Path) -> None:
    """Draw errors over training steps on the left, and scores that should be high on the right."""
    groups = {
        "error (%), lower is better": [c for c in found["curves"] if c["better"] == Better.LOWER],
        "score (%), higher is better": [c for c in found["curves"] if c["better"] != Better.LOWER],
    }
    drawn = {label: curves for label, curves in groups.items() if curves}
    with figure(5.6 * len(drawn), 4.4, stem) as fig:
        for axes, (label, curves) in zip(fig.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
            draw_curves(axes, curves, found["phases"])
            axes.set_ylabel(label)


def draw_curves(axes: Any, curves: Sequence[dict[str, Any]], phases: Sequence[Sequence[int]]) -> None:
    for index, (number, start, end) in enumerate(phases):
        if index % 2:
            axes.axvspan(start, end, color=SHADE, zorder=0)
        axes.text(start, 1.01, f"  Phase {number}", transform=axes.get_xaxis_transform(), color=MUTED)
    styles = zip(curves, name_curves(curves), ramp(len(curves)), strict=True)
    for index, (curve, label, colour) in enumerate(styles):
        steps, values = zip(*curve["points"], strict=True)
        axes.plot(steps, values, marker=MARKERS[index % len(MARKERS)], color=colour, ms=4, label=label)
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(color=GRID, lw=0.7)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14))
