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
from sjepa.stopping import stop_waiting_if_asked
from sjepa.targets.reservoir import Reservoir
from sjepa.train.agreement import stop_if_asked
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
) -> None:
    """Make and fit the targets of a phase. All ranks raise StoppedError if one of them is asked to stop meanwhile."""
    stop_if_asked()
    if phase.config.targets == "same":
        targets, curve = run.targets, []
    else:
        targets, hours = run.make_targets(phase), run.config.gmm.fit_hours
        run.layer.release()
        frames = partial(targets.frames_to_fit, layer=run.layer.active)
        note = f"Sampling frames for K = {targets.components}"
        curve = targets.fit(sample_frames(run, frames, reader, plan, hours, note, stop_if_asked))
    run.install(targets, phase.number, new_output=phase.config.targets != "same")
    torch.cuda.empty_cache()  # a step cannot reuse the memory blocks of a fit
    layer = None if targets.target_encoder is None else run.next_layer
    facts = {"phase": phase.number, "targets": targets.name, "k": targets.components, "active_layer": layer}
    log.write("phase", run.step, **facts, log_likelihood=curve)
    whose = "the target encoder" if targets.online else "a frozen copy of the encoder"
    on = "" if layer is None else f" on layer {layer} of {whose}"
    say(f"Phase {phase.number}: {phase.config.steps:,} steps, {targets.name} targets{on}, K = {targets.components}")


def move_targets(run: Run, phase: Phase, reader: BatchReader, plan: BatchPlan) -> None:
    """Let online targets read the layer that the last check chose, and fit them again if that is due.

    A single process that is asked to stop meanwhile raises StoppedError, and leaves the targets as they were.
    """
    if run.active_layer is None or not run.targets.online:
        return
    layers = tuple(dict.fromkeys([run.active_layer, run.next_layer]))
    if len(layers) > 1:
        run.best_masked = 0.0  # other targets may be harder to predict
    if phase.refits(run.step) or (len(layers) > 1 and run.config.layer.on_change == "anchor"):
        hours, epoch = min(ANCHOR_HOURS, run.config.gmm.fit_hours), run.position[0]
        features, note = partial(run.targets.layer_features, layers=layers), "Sampling frames to fit targets again"
        run.targets.anchor(sample_frames(run, features, reader, plan, hours, note, stop_waiting_if_asked, epoch))
        torch.cuda.empty_cache()
    run.layer.follow()


@torch.no_grad()
def sample_frames(
    run: Run,
    features: Callable[[Tensor], Tensor],
    reader: BatchReader,
    plan: BatchPlan,
    hours: float,
    note: str,
    check_stop: Callable[[], None],
    epoch: int = 0,
) -> Tensor:
    """Sample features uniformly from the first hours of an epoch, in one streaming pass.

    `check_stop` is called after each batch, and raises if the run should stop.
    """
    reservoir = Reservoir(run.config.gmm.reservoir, seed_from(run.config.seed, run.step))
    specs = plan.epoch(epoch)
    wanted = specs.count_batches(hours * 3600)
    with (
        closing(load(reader, plan, (epoch, 0), run.config.batches.workers, run.device)) as batches,
        bar(note, wanted) as progress,
    ):
        for index in range(wanted):
            spec, batch = specs[index], next(batches)
            with autocast(run.config, run.device):
                frames = features(batch.clean)
            reservoir.add(frames.float(), spec.utterances[spec.places(distributed.rank(), distributed.world_size())])
            progress.advance()
            check_stop()
    return reservoir.gather()
