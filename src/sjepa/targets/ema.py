"""The target encoder: a moving average of the encoder, with a decay that changes during the phase."""

import copy
import math
from dataclasses import dataclass
from typing import Annotated, Literal

from torch.optim.swa_utils import get_ema_multi_avg_fn

from sjepa.bounds import SHARE
from sjepa.model.encoder import EncoderNetwork


@dataclass(frozen=True)
class EmaConfig:
    """Decay of the target encoder, in phases with online targets."""

    fast: Annotated[float, SHARE] = 0.999
    """Decay at the start of a phase."""
    slow: Annotated[float, SHARE] = 0.9999
    """Decay of every other interval, or at the end of a phase (see `schedule`). If it equals
    `fast`, the decay is constant."""
    schedule: Literal["switched", "linear", "cosine"] = "switched"
    """How the decay changes, once per `ema_switch_every`: switched between `fast` and `slow` (paper), or from `fast` at
    the start of the phase to `slow` at its end, evenly (linear) or by a half cosine."""


def decay_at(step: int, steps: int, every: int, config: EmaConfig) -> float:
    """Return the decay at a step of a phase of `steps` steps. It changes every `every` steps and starts fast."""
    interval, last = step // every, (steps - 1) // every
    if config.schedule == "switched":
        return config.slow if interval % 2 else config.fast
    progress = interval / max(1, last)
    if config.schedule == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return config.fast + progress * (config.slow - config.fast)


def copy_encoder(encoder: EncoderNetwork) -> EncoderNetwork:
    """Return a copy of the encoder in evaluation mode, without gradients."""
    return copy.deepcopy(encoder).eval().requires_grad_(False)


def follow(target: EncoderNetwork, encoder: EncoderNetwork, decay: float) -> None:
    """Update target <- target + (1 - decay) (encoder - target).

    In this form, a target that equals its encoder stays exactly equal. A sum of two products would drift, because the
    rounded factors do not add up to 1.
    """
    get_ema_multi_avg_fn(decay)(list(target.parameters()), list(encoder.parameters()), None)
