"""The two phases as data: what changes when."""

import math
from dataclasses import dataclass, field
from typing import Literal

from sjepa.errors import UserError
from sjepa.targets.ema import EmaConfig, decay_at
from sjepa.targets.providers import TargetKind

Cadence = int | float
"""Steps where it is an integer, a fraction of the phase where it has a decimal point."""


@dataclass(frozen=True)
class PhaseConfig:
    """One phase. Cadences are steps (`2000`) or fractions of the phase (`0.1`)."""

    steps: int = 400_000
    """Optimizer steps."""
    targets: TargetKind | Literal["same"] = "mfcc-gmm"
    """What is predicted: in phase 1 mfcc-gmm, mfcc-kmeans or best-rq; in phase 2 any, or `same` for phase 1's."""
    hard: bool = False
    """Replace each posterior by its argmax."""
    temperature: float = 1.0
    """Softens the posteriors where it is above 1."""
    centred: bool = False
    """Subtract each utterance's mean from the features first: targets then say less of speaker and channel (ours)."""
    lr: float = 1e-4
    """Learning rate after warm-up."""
    warmup: Cadence = 0.05
    """Linear warm-up from the learning rate of the phase before (0 in phase 1)."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After warm-up: constant, or a half cosine down to a tenth."""
    visible_loss_until: Cadence = 1.0
    """The loss covers visible frames as well until here, masked frames only from then on."""
    augment_until: Cadence = 1.0
    """Augmentation is on until here."""
    layer_check_every: Cadence = 0.025
    """Cadence of the effective-rank check."""
    ema_switch_every: Cadence = 0.05
    """Cadence at which the target encoder's decay flips."""


@dataclass(frozen=True)
class Phase:
    """A phase at its place in the run; steps here count from the start of the run."""

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

    def lr(self, step: int) -> float:
        config, done, warmup = self.config, step - self.start, self.steps(self.config.warmup)
        if done < warmup:
            return self.lr_before + (config.lr - self.lr_before) * (done + 1) / warmup
        if config.schedule == "constant":
            return config.lr
        progress = (done - warmup) / max(1, config.steps - warmup)
        return config.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))

    def visible_loss(self, step: int) -> bool:
        return step - self.start < self.steps(self.config.visible_loss_until)

    def augmented(self, step: int) -> bool:
        return step - self.start < self.steps(self.config.augment_until)

    def layer_check(self, step: int) -> bool:
        """After this step: at the cadence, and at the end of the phase."""
        every = max(1, self.steps(self.config.layer_check_every))
        return (step - self.start + 1) % every == 0 or step + 1 == self.end

    def decay(self, step: int) -> float:
        return decay_at(step - self.start, max(1, self.steps(self.config.ema_switch_every)), self.ema)


def check_cadences(name: str, phase: PhaseConfig) -> None:
    for key in ("warmup", "visible_loss_until", "augment_until", "layer_check_every", "ema_switch_every"):
        value = getattr(phase, key)
        if isinstance(value, float) and not 0 <= value <= 1:
            raise UserError(
                f"{name}.{key} = {value}: a fraction of the phase lies between 0 and 1; whole numbers are steps"
            )
        if value < 0:
            raise UserError(f"{name}.{key} = {value} is negative")
