"""One training step: targets, masked prediction, KL, update."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.augment import align_targets, student_samples
from sjepa.config import Config
from sjepa.data.loader import Batch, to_float
from sjepa.phases import Phase
from sjepa.seeds import seed_from
from sjepa.torch_private import skip_next_step
from sjepa.train.compute import autocast
from sjepa.train.run import Run


@dataclass(frozen=True)
class StepKind:
    """Everything on the host that decides what a step computes.

    It is the only host value that `learn` reads apart from what never changes within a phase, and it is the key under
    which the step is captured as a CUDA graph. So a replayed step cannot differ from the one that was asked for.
    """

    keep: tuple[bool, ...]
    """Transformer layers that run in this step (LayerDrop)."""
    augments: bool
    visible_loss: bool
    trains_frontend: bool
    decay: float
    """Of the target encoder."""
    layer: int | None
    """Active layer of the target encoder; None if targets do not come from one."""


def step_kind(run: Run, phase: Phase) -> StepKind:
    """The kind of the run's next step."""
    step = run.step
    return StepKind(
        keep=layers_kept(run.config, step),
        augments=phase.augments(step),
        visible_loss=phase.visible_loss(step),
        trains_frontend=phase.trains_frontend(step),
        decay=phase.decay(step) if run.targets.online else 1.0,
        layer=run.active_layer,
    )


def layers_kept(config: Config, step: int) -> tuple[bool, ...]:
    """LayerDrop, drawn alike on every rank."""
    draws = np.random.default_rng((config.seed, step)).random(config.encoder.layers)
    return tuple((draws >= config.encoder.layerdrop).tolist())


def train_step(run: Run, phase: Phase, batch: Batch, noise: Tensor | None) -> None:
    """One minibatch, launched on the device as a CUDA graph if the run has graphs."""
    kind = step_kind(run, phase)
    run.set_learning_rate(phase.lr(run.step))
    torch.manual_seed(seed_from(run.config.seed, run.step, distributed.rank()))  # dropout

    def work(waveforms: Tensor, mask: Tensor, draws: Tensor) -> None:
        learn(run, kind, to_float(waveforms), mask, draws, noise)

    if run.graphs is None:
        work(*batch.inputs)
    else:
        run.graphs.run(kind, batch.inputs, work)


def learn(run: Run, kind: StepKind, clean: Tensor, mask: Tensor, draws: Tensor, noise: Tensor | None) -> None:
    """What the device does in a step. Nothing here waits for it."""
    config, model = run.config, run.model
    model.train()
    with autocast(config, run.device):
        features = run.targets.frame_features(clean, kind.layer)
        with run.side_stream():
            q = run.targets(features)  # the online mixture is updated here, after its posterior is taken
        samples = student_samples(clean.shape[1], config.augment.speed)
        student = clean[:, :samples]
        if kind.augments:
            student = run.augment(clean, draws, noise, samples, config.augment.equalizer > 0)
        z = model.encoder(student, mask=mask, keep=kind.keep, train_frontend=kind.trains_frontend).last
        logits = model.predict(z, mask)
        direct = model.head(z) if config.train.masked_path == "both" else None
        run.side_stream.join()
    if samples < clean.shape[1]:
        q = align_targets(q, draws if kind.augments else None, mask.shape[1])
    kl_masked, kl_visible, sums = run.frame_sums(q, logits, mask)
    masked, visible = sums[4], sums[5]
    # One mean over S of all ranks together; a batch may have drawn no mask at all.
    frames = distributed.sum_over_ranks(masked + visible if kind.visible_loss else masked.clone()).clamp(min=1.0)
    kl = kl_masked + kl_visible if kind.visible_loss else kl_masked
    kl_encoder = None if direct is None else run.masked_kl(q, direct, mask)
    loss = (kl if kl_encoder is None else kl + kl_encoder) / frames

    loss.backward()
    distributed.sum_gradients(model.parameters())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
    finite = torch.isfinite(norm)
    skip_next_step(run.optimizer, ~finite)
    run.optimizer.step()
    run.targets.follow(model.encoder, kind.decay)
    run.meter.add(sums, q, loss, norm, finite)
    if kl_encoder is not None:
        run.meter.add_encoder(kl_encoder, finite)
    run.optimizer.zero_grad(set_to_none=True)
