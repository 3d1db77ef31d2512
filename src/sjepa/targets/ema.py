"""The target encoder: a moving average of the encoder, with a decay that switches between two values."""

import copy
from dataclasses import dataclass
from typing import Annotated

from torch.optim.swa_utils import get_ema_multi_avg_fn

from sjepa.bounds import SHARE
from sjepa.model.encoder import EncoderNetwork


@dataclass(frozen=True)
class EmaConfig:
    """Decay of the target encoder in phase 2."""

    fast: Annotated[float, SHARE] = 0.999
    """Decay in the first, third, ... interval."""
    slow: Annotated[float, SHARE] = 0.9999
    """Decay in the second, fourth, ... interval. Set it equal to `fast` for a fixed decay."""


def decay_at(step: int, every: int, config: EmaConfig) -> float:
    """Return the decay at a step of the phase. It switches every `every` steps and starts fast."""
    return config.slow if (step // every) % 2 else config.fast


def copy_encoder(encoder: EncoderNetwork) -> EncoderNetwork:
    """Return a copy of the encoder in evaluation mode, without gradients."""
    return copy.deepcopy(encoder).eval().requires_grad_(False)


def follow(target: EncoderNetwork, encoder: EncoderNetwork, decay: float) -> None:
    """Update target <- target + (1 - decay) (encoder - target).

    In this form, a target that equals its encoder stays exactly equal. A sum of two products would drift, because the
    rounded factors do not add up to 1.
    """
    get_ema_multi_avg_fn(decay)(list(target.parameters()), list(encoder.parameters()), None)
