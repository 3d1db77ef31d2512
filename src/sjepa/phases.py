"""Training phases: the settings of each phase, and its schedules."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from sjepa.bounds import CADENCE, COUNT, INDEX, LENGTH, NOT_NEGATIVE, SHARE, TEMPERATURE
from sjepa.targets.ema import EmaConfig, decay_at
from sjepa.targets.kinds import TargetName
from sjepa.targets.projection import Directions

Cadence = Annotated[int | float, CADENCE]
"""A whole number of steps, or a fraction of the phase if it has a decimal point."""


@dataclass(frozen=True)
class PhaseConfig:
    """One phase. Times and intervals are a number of steps (`2000`) or a fraction of the phase (`0.1`)."""

    steps: Annotated[int, COUNT] = 400_000
    """Optimizer steps."""
    targets: TargetName | Literal["same"] = "mfcc-gmm"
    """What the model predicts. mfcc-gmm and mfcc-kmeans: clusters of MFCCs, by a Gaussian mixture or by k-means.
    best-rq: codes of a random projection of log-mel. encoder-gmm and encoder-kmeans: clusters of a layer of a frozen
    copy of the encoder. online-gmm: the same, but copy and mixture follow the encoder. same: the targets of the
    previous phase, with its k, dimensions, directions, hard, temperature and centred. Phase 1 accepts the encoder's
    clusters only with init_from, and never `same`."""
    k: Annotated[int, COUNT] = 100
    """Components of the Gaussian mixture, or codes of the codebook."""
    dimensions: Annotated[int, INDEX] = 0
    """Number of directions of the features that the codebook reads; 0 uses the features themselves (paper). Posteriors
    are softer in few dimensions."""
    directions: Directions = "principal"
    """Which directions: those of largest variance (principal components), or those that best separate k clusters of the
    features (linear discriminant analysis, without labels)."""
    hard: bool = False
    """Replace each posterior by its argmax."""
    temperature: Annotated[float, TEMPERATURE] = 1.0
    """Temperature of the targets: it divides the log posteriors, so values above 1 make targets softer."""
    centred: bool = False
    """Subtract each crop's mean from its features, so that targets depend less on speaker and channel (not
    in the paper)."""
    lr: Annotated[float, NOT_NEGATIVE] = 1e-4
    """Learning rate after warm-up."""
    warmup: Cadence = 0.05
    """Length of the linear warm-up, from the last learning rate of the previous phase (0 in phase 1)."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After warm-up: constant, or a half cosine down to `final_lr`."""
    final_lr: Annotated[float, SHARE] = 0.1
    """Learning rate at the end of the cosine schedule, as a share of `lr`."""
    visible_loss_until: Cadence = 1.0
    """The loss includes visible frames until this step. After it, the loss covers masked frames only."""
    augment_until: Cadence = 1.0
    """Augmentation is used until this step."""
    frontend_until: Cadence = 1.0
    """The convolutional front end trains until this step and is frozen after it (paper: never frozen)."""
    layer_check_every: Cadence = 0.025
    """Steps between checks of the effective rank."""
    ema_switch_every: Cadence = 0.05
    """Steps between changes of the target encoder's decay. With `ema.schedule` linear or cosine, at least a hundredth
    of the phase."""
    refit_every: Cadence = 0
    """Steps between refits of online targets: directions and mixture are fitted again to an hour of audio,
    starting from the current posteriors, so that components keep their meaning (not in the paper). 0 never refits."""
    batch_seconds: Annotated[float, NOT_NEGATIVE] = 0.0
    """Seconds of audio in a global batch of this phase; 0 uses `batches.seconds`."""
    buckets: Annotated[tuple[float, ...], LENGTH] = ()
    """Crop lengths of this phase in seconds; if empty, `batches.buckets`."""


@dataclass(frozen=True)
class Phase:
    """A phase and its place in the run. Steps count from the start of the run."""

    number: int
    start: int
    config: PhaseConfig
    ema: EmaConfig = field(default_factory=EmaConfig)
    lr_before: float = 0.0

    @property
    def end(self) -> int:
        return self.start + self.config.steps

    def steps(self, cadence: Cadence) -> int:
        return cadence if isinstance(cadence, int) else round(cadence * self.config.steps)

    def is_before(self, step: int, cadence: Cadence) -> bool:
        """Return whether a step of the run is before a point of this phase."""
        return step - self.start < self.steps(cadence)

    def lr(self, step: int) -> float:
        """Return the learning rate at a step of the run."""
        config, done, warmup = self.config, step - self.start, self.steps(self.config.warmup)
        if done < warmup:
            return self.lr_before + (config.lr - self.lr_before) * (done + 1) / warmup
        if config.schedule == "constant":
            return config.lr
        progress = (done - warmup) / max(1, config.steps - warmup)
        return config.lr * (config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * progress)))

    def uses_visible_loss(self, step: int) -> bool:
        return self.is_before(step, self.config.visible_loss_until)

    def augments(self, step: int) -> bool:
        return self.is_before(step, self.config.augment_until)

    def trains_frontend(self, step: int) -> bool:
        return self.is_before(step, self.config.frontend_until)

    def checks_layers(self, step: int) -> bool:
        """Return whether layers are checked after this step: at the cadence, and at the end of the phase."""
        every = max(1, self.steps(self.config.layer_check_every))
        return (step - self.start + 1) % every == 0 or step + 1 == self.end

    def refits(self, step: int) -> bool:
        """Return whether online targets are fitted again before this step."""
        every, done = max(1, self.steps(self.config.refit_every)), step - self.start
        return self.config.refit_every > 0 and done > 0 and done % every == 0

    def decay(self, step: int) -> float:
        every = max(1, self.steps(self.config.ema_switch_every))
        return decay_at(step - self.start, self.config.steps, every, self.ema)
