"""One training step: targets, masked prediction, KL, update."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.augment import Draws, align_features, student_samples
from sjepa.config import Config
from sjepa.data.loader import Batch, to_float
from sjepa.data.sampler import split_evenly
from sjepa.phases import Phase
from sjepa.seeds import seed_from
from sjepa.torch_private import prepare_step
from sjepa.train.compute import autocast
from sjepa.train.loss import SUMS
from sjepa.train.optimizer import set_learning_rate
from sjepa.train.run import Run

MOST_PATTERNS = 64  # of LayerDrop: all patterns of six layers. Each needs its own CUDA graph per crop length
PATTERNS = 40  # of deeper encoders: with the paper's eleven crop lengths, fewer than the graphs that are kept


@dataclass(frozen=True)
class StepKind:
    """All host values that determine what a step computes.

    Apart from values that are constant within a phase, `learn` reads no other host value. The kind is also the key of
    the captured CUDA graph, so a replayed step always computes what was requested.
    """

    keep: tuple[bool, ...]
    """Transformer layers that run in this step (LayerDrop)."""
    augments: bool
    visible_loss: bool
    trains_frontend: bool
    decay: float
    """Decay of the target encoder."""
    layer: int | None
    """Active layer of the target encoder, or None if targets do not read it."""

    @property
    def code(self) -> tuple[bool, bool]:
        """The values for which the compiler makes other code."""
        return self.augments, self.trains_frontend


def find_step_kind(run: Run, phase: Phase) -> StepKind:
    """Return the kind of the next step."""
    step = run.step
    return StepKind(
        keep=draw_kept_layers(run.config, step),
        augments=phase.augments(step),
        visible_loss=phase.uses_visible_loss(step),
        trains_frontend=phase.trains_frontend(step),
        decay=phase.decay(step) if run.targets.online else 1.0,
        layer=run.active_layer,
    )


def draw_kept_layers(config: Config, step: int) -> tuple[bool, ...]:
    """Draw the layers that LayerDrop keeps, equally on all ranks.

    A deep encoder draws one of a fixed set of patterns. Each layer is dropped in equally many of them, so the rate is
    rounded to a multiple of 1/40.
    """
    layers, rate = config.encoder.layers, config.encoder.layerdrop
    source = np.random.default_rng((config.seed, step))
    if 2**layers <= MOST_PATTERNS:
        return tuple((source.random(layers) >= rate).tolist())
    order = deal_patterns(config.seed, layers)[:, source.integers(PATTERNS)]
    return tuple((order >= round(rate * PATTERNS)).tolist())


@lru_cache
def deal_patterns(seed: int, layers: int) -> np.ndarray:
    """Return an order of the patterns for each layer: (layers, PATTERNS). The first ones drop the layer."""
    source = np.random.default_rng((seed, layers))
    return np.stack([source.permutation(PATTERNS) for _ in range(layers)])


def train_step(run: Run, phase: Phase, batch: Batch, noise: Tensor | None) -> None:
    """Run one step on a batch, as a CUDA graph if the run uses graphs."""
    kind = find_step_kind(run, phase)
    set_learning_rate(run.optimizers, phase.lr(run.step))
    torch.manual_seed(seed_from(run.config.seed, run.step, distributed.rank()))  # dropout

    def work(waveforms: Tensor, masks: Tensor, draws: Tensor) -> None:
        learn(run, kind, to_float(waveforms), masks, draws, noise)

    if run.graphs is None:
        work(*batch.inputs)
    else:
        run.graphs.run(kind, batch.inputs, work, kind.code)


class PartSums(NamedTuple):
    """Sums over the parts of a rank's batch."""

    loss: Tensor  # sum of KL over the frames of the loss
    frames: Tensor  # number of these frames
    watched: Tensor  # the sums in `loss.SUMS`
    occupancy: Tensor  # (K,) frames per component
    kl_encoder: Tensor  # KL of the encoder's own predictions at masked frames; 0 if not in the loss
    statistics: Tensor  # statistics of an online mixture; otherwise empty


def learn(run: Run, kind: StepKind, clean: Tensor, masks: Tensor, draws: Tensor, noise: Tensor | None) -> None:
    """Run the part of a step that is on the device. The host does not wait for it."""
    run.model.train()
    *others, last = split_evenly(len(clean), run.config.train.accumulate)
    total: PartSums | None = None
    for part in (*others, last):
        rows = slice(part.start, part.stop)
        found = add_gradients(run, kind, clean[rows], masks[rows], draws[:, rows], noise, last=part is last)
        total = found if total is None else PartSums(*(a + b for a, b in zip(total, found, strict=True)))
    assert total is not None
    update(run, kind, total)


def add_gradients(
    run: Run, kind: StepKind, clean: Tensor, masks: Tensor, draws: Tensor, noise: Tensor | None, last: bool
) -> PartSums:
    """Add the gradients of a part of the batch. After the last part, start to sum them over ranks."""
    config, model = run.config, run.model
    views, mask = masks.shape[1], masks.flatten(0, 1)  # the views of an utterance follow each other
    with autocast(config, run.device):
        samples = student_samples(clean.shape[1], config.augment.speed)
        audio = clean[:, :samples]
        if kind.augments and config.augment.speed > 0:
            audio = run.change_speed(clean, Draws.from_rows(draws).rate, samples)
        target_audio = audio if config.augment.speed_targets else clean
        target_features = run.targets.frame_features(target_audio, kind.layer)
        with run.side_stream():
            aligned = None
            if kind.augments and target_audio.shape[1] > samples:
                aligned = align_features(target_features, draws, mask.shape[1])
            q, statistics = run.targets(target_features, aligned)
        student = run.augment(audio, draws, noise, config.augment.equalizer > 0) if kind.augments else audio
        with torch.set_grad_enabled(kind.trains_frontend):
            convolved = model.encoder.convolve(student)
        # The backward pass stops here first. Ranks sum the later gradients while the front end computes its own.
        features = convolved.detach().requires_grad_(kind.trains_frontend)
        z = model.encoder.transform(repeat(features, views), mask=mask, keep=kind.keep).last
        logits = model.predict(z, mask)
        direct = model.head(z) if config.train.masked_path == "both" else None
        run.side_stream.join()
    q = q[:, : mask.shape[1]]  # the encoder may see less of the audio than targets do
    occupancy, q = q.sum((0, 1)), repeat(q, views)
    kl_masked, kl_visible, watched = run.frame_sums(q, logits, mask)
    kl_encoder = None if direct is None else run.masked_kl(q, direct, mask)
    loss = kl_masked + kl_visible if kind.visible_loss else kl_masked
    if kl_encoder is not None:
        loss = loss + kl_encoder
    loss.backward()
    if last:
        run.step_sum.start()
    if features.grad is not None:
        convolved.backward(features.grad)
    masked, visible = (watched[SUMS.index(name)] for name in ("frames_masked", "frames_visible"))
    return PartSums(
        loss.detach(),
        masked + visible if kind.visible_loss else masked,
        watched,
        occupancy,
        torch.zeros_like(masked) if kl_encoder is None else kl_encoder.detach(),
        masked.new_empty(0) if statistics is None else statistics,
    )


def repeat(x: Tensor, views: int) -> Tensor:
    """Repeat each utterance of a batch for its views: (B, ...) -> (B V, ...)."""
    return x if views == 1 else x.repeat_interleave(views, 0)


def update(run: Run, kind: StepKind, total: PartSums) -> None:
    """Update the model, the target encoder and the online mixture with the batch of all ranks."""
    numbers = torch.cat([total.frames[None], run.stop_wish, total.statistics])
    frames, stop_wishes, statistics = run.step_sum.finish(numbers).split([1, 1, len(total.statistics)])
    run.stop_wishes.copy_(stop_wishes)
    # The loss is the mean over the frames of all ranks. A batch may have no masked frame.
    frames = frames[0].clamp(min=1.0)
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients) / frames
    finite = torch.isfinite(norm)
    clip = (run.config.train.clip / (norm + 1e-6)).clamp(max=1.0)
    for optimizer in run.optimizers:
        prepare_step(optimizer, frames / clip, ~finite)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    run.targets.follow(run.model.encoder, kind.decay)
    if run.targets.online:
        run.update_targets(statistics)
    run.meter.add(total.watched, total.occupancy, total.loss / frames, norm, finite)
    run.meter.add_encoder(total.kl_encoder, finite)
