"""The target encoder: a slow copy of the encoder whose decay switches between two values."""

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from sjepa.bounds import SHARE
from sjepa.model.encoder import Encoder


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


def copy_of(encoder: Encoder) -> Encoder:
    """A target encoder that starts equal: evaluation mode, no gradients."""
    return copy.deepcopy(encoder).eval().requires_grad_(False)


@torch.no_grad()
def follow(target: Encoder, encoder: Encoder, decay: float) -> None:
    """target <- decay target + (1 - decay) encoder."""
    weights: list[Tensor] = list(target.parameters())
    torch._foreach_mul_(weights, decay)
    torch._foreach_add_(weights, list(encoder.parameters()), alpha=1.0 - decay)
