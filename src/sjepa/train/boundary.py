"""Where a phase begins: its targets are made and fitted, everything else carries on."""

import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.io import SAMPLE_RATE
from sjepa.data.loader import BatchReader, load
from sjepa.data.sampler import BatchPlan
from sjepa.phases import Phase
from sjepa.progress import bar, say
from sjepa.targets.providers import Targets
from sjepa.targets.reservoir import Reservoir
from sjepa.train.compute import autocast
from sjepa.train.metrics import Log
from sjepa.train.run import Run, seed_from


def begin_phase(run: Run, phase: Phase, reader: BatchReader, plan: BatchPlan, log: Log, show: bool) -> None:
    """Make and fit the phase's targets; weights and optimizer carry on."""
    targets = run.make_targets(phase)
    curve: list[float] = []
    if phase.config.targets == "same":
        targets.load_state_dict(run.targets.state_dict())
    else:
        curve = targets.fit(sample_frames(run, targets, reader, plan, show))
    run.install(targets, phase.number)
    layer = run.layer.active if targets.target_encoder is not None else None
    facts = {"phase": phase.number, "targets": targets.kind, "k": targets.components, "active_layer": layer}
    log.write("phase", run.step, **facts, log_likelihood=curve)
    on = "" if layer is None else f" on layer {layer} of the target encoder"
    say(f"Phase {phase.number}: {phase.config.steps:,} steps, {targets.kind} targets{on}, K = {targets.components}")


@torch.no_grad()
def sample_frames(run: Run, targets: Targets, reader: BatchReader, plan: BatchPlan, show: bool) -> Tensor:
    """A uniform sample of the features that targets will see, from one streaming pass."""
    config = run.config.gmm
    reservoir = Reservoir(config.reservoir, seed_from(run.config.seed, targets.components))
    epoch = plan.epoch(0)
    heard, wanted = 0.0, config.fit_hours * 3600
    batches = load(reader, plan, (0, 0), run.config.batches.workers, run.device)
    with bar(f"Sampling frames for K = {targets.components}", len(epoch), show=show) as progress:
        for index in range(len(epoch)):
            if heard >= wanted:
                break
            spec, batch = epoch[index], next(batches)
            with autocast(run.config, run.device):
                frames = targets.frames_to_fit(batch.clean)
            reservoir.add(frames.float(), spec.utterances[distributed.rank() :: distributed.world_size()])
            heard += spec.samples * len(spec.utterances) / SAMPLE_RATE
            progress.advance()
    batches.close()
    return reservoir.gather()
