"""The target encoder: a slow copy of the encoder whose decay switches between two values."""

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
    """Decay in the second, fourth, ... interval; set equal to `fast` for a fixed decay."""


def decay_at(step: int, every: int, config: EmaConfig) -> float:
    """The decay in force at a step of the phase: it flips every `every` steps, starting fast."""
    return config.slow if (step // every) % 2 else config.fast


def copy_of(encoder: EncoderNetwork) -> EncoderNetwork:
    """A target encoder that starts equal: evaluation mode, no gradients."""
    return copy.deepcopy(encoder).eval().requires_grad_(False)


def follow(target: EncoderNetwork, encoder: EncoderNetwork, decay: float) -> None:
    """target <- decay target + (1 - decay) encoder, as target + (1 - decay) (encoder - target).

    So written, a target that equals its encoder stays equal to the last bit; as a sum of two products it drifts,
    because the rounded factors do not add up to 1.
    """
    get_ema_multi_avg_fn(decay)(list(target.parameters()), list(encoder.parameters()), None)
