"""Effective rank of each layer's features, and the choice of the active layer by it."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from sjepa import distributed
from sjepa.bounds import COUNT, INDEX, SHARE
from sjepa.model.encoder import Encoder


@dataclass(frozen=True)
class LayerConfig:
    """Which layer of the target encoder the online mixture reads."""

    choice: Annotated[int | None, INDEX] = None
    """A fixed layer, or none to follow the effective rank."""
    frames: Annotated[int, COUNT] = 2000
    """Frames per layer in each measurement."""
    smoothing: Annotated[float, SHARE] = 0.5
    """Weight of the past in the smoothed ranks (ours; the paper gives no value)."""
    on_change: Literal["carry", "anchor"] = "carry"
    """When the layer changes, the mixture carries on as it is (paper), or its components are first moved to where their
    frames lie in the new layer (ours)."""


@torch.no_grad()
def effective_rank(features: Tensor) -> Tensor:
    """exp of the entropy of the normalised singular values of centred features: (..., N, D) -> (...)."""
    features = features.double()
    centred = features - features.mean(-2, keepdim=True)
    # Their squares are the eigenvalues of a D x D matrix, far quicker to find; fp64 keeps what squaring costs.
    squares = torch.linalg.eigvalsh(centred.mT @ centred)
    singular = squares.clamp(min=0).sqrt()
    p = singular / singular.sum(-1, keepdim=True).clamp(min=1e-12)
    return torch.exp(-torch.xlogy(p, p).sum(-1))


class LayerChoice:
    """Smoothed effective ranks and the layer with the highest."""

    def __init__(self, config: LayerConfig):
        self.config = config
        self.smoothed: list[float] = []

    @property
    def active(self) -> int:
        if self.config.choice is not None:
            return self.config.choice
        return max(range(len(self.smoothed)), key=self.smoothed.__getitem__) if self.smoothed else 0

    def observe(self, ranks: list[float]) -> None:
        past = self.config.smoothing
        self.smoothed = [past * a + (1 - past) * b for a, b in zip(self.smoothed or ranks, ranks, strict=True)]


@torch.no_grad()
def measure_ranks(encoder: Encoder, clean: Tensor, frames: int, generator: torch.Generator) -> list[float] | None:
    """Effective rank of every layer's output on clean, unmasked audio, over a sample of all ranks' frames.

    None where the features are not finite.
    """
    training = encoder.training
    states = encoder.eval()(clean).hidden_states[1:]
    encoder.train(training)
    available = states[0].shape[0] * states[0].shape[1]
    share = min(available, -(-frames // distributed.world_size()))
    chosen = torch.randperm(available, generator=generator)[:share].to(clean.device)
    sampled = torch.stack([state.flatten(0, 1)[chosen].float() for state in states])  # (L, N, D)
    sampled = torch.cat(distributed.gather_tensors(sampled), dim=1)
    return effective_rank(sampled).tolist() if bool(torch.isfinite(sampled).all()) else None
