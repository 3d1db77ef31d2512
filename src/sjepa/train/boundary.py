"""Fit targets at the start of a phase, and again within it. Weights and optimizer state are kept."""

from collections.abc import Callable
from contextlib import closing
from functools import partial

import torch
from torch import Tensor

from sjepa import distributed
from sjepa.data.loader import BatchReader, load
from sjepa.data.sampler import BatchPlan
from sjepa.phases import Phase
from sjepa.progress import bar, say
from sjepa.seeds import seed_from
from sjepa.targets.reservoir import Reservoir
from sjepa.train.compute import autocast
from sjepa.train.metrics import Log
from sjepa.train.run import Run

ANCHOR_HOURS = 1.0  # of audio to move or refit a mixture: about as many frames as the reservoir keeps


def begin_phase(
    run: Run,
    phase: Phase,
    reader: BatchReader,
    plan: BatchPlan,
    log: Log,
    show: bool,
    check_stop: Callable[[], None] = lambda: None,
) -> None:
    """Make and fit the targets of a phase. `check_stop` raises if the run should stop."""
    check_stop()
    if phase.config.targets == "same":
        targets, curve = run.targets, []
    else:
        targets, hours = run.make_targets(phase), run.config.gmm.fit_hours
        run.layer.release()
        frames = partial(targets.frames_to_fit, layer=run.layer.active)
        note = f"Sampling frames for K = {targets.components}"
        curve = targets.fit(sample_frames(run, frames, reader, plan, hours, note, show, check_stop))
    run.install(targets, phase.number, new_output=phase.config.targets != "same")
    torch.cuda.empty_cache()  # a step cannot reuse the memory blocks of a fit
    facts = {"phase": phase.number, "targets": targets.name, "k": targets.components, "active_layer": run.active_layer}
    log.write("phase", run.step, **facts, log_likelihood=curve)
    on = "" if run.active_layer is None else f" on layer {run.active_layer} of the target encoder"
    say(f"Phase {phase.number}: {phase.config.steps:,} steps, {targets.name} targets{on}, K = {targets.components}")


def move_targets(run: Run, phase: Phase, reader: BatchReader, plan: BatchPlan) -> None:
    """Let online targets read the layer that the last check chose, and fit them again if that is due."""
    before = run.active_layer
    if before is None or not run.targets.online:
        return
    moves = run.layer.follow() and run.config.layer.on_change == "anchor"
    if not (moves or phase.refits(run.step)):
        return
    features = partial(run.targets.two_layer_features, layers=(before, run.layer.active))
    hours = min(ANCHOR_HOURS, run.config.gmm.fit_hours)
    run.targets.anchor(sample_frames(run, features, reader, plan, hours))
    torch.cuda.empty_cache()


@torch.no_grad()
def sample_frames(
    run: Run,
    features: Callable[[Tensor], Tensor],
    reader: BatchReader,
    plan: BatchPlan,
    hours: float,
    note: str = "",
    show: bool = False,
    check_stop: Callable[[], None] = lambda: None,
) -> Tensor:
    """Sample features uniformly from the given hours of audio, in one streaming pass."""
    reservoir = Reservoir(run.config.gmm.reservoir, seed_from(run.config.seed, run.step))
    epoch = plan.epoch(0)
    wanted = epoch.count_batches(hours * 3600)
    with (
        closing(load(reader, plan, (0, 0), run.config.batches.workers, run.device)) as batches,
        bar(note, wanted, show=show) as progress,
    ):
        for index in range(wanted):
            spec, batch = epoch[index], next(batches)
            with autocast(run.config, run.device):
                frames = features(batch.clean)
            reservoir.add(frames.float(), spec.utterances[spec.places(distributed.rank(), distributed.world_size())])
            progress.advance()
            check_stop()
    return reservoir.gather()
