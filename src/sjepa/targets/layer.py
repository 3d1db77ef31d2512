"""Effective rank of each layer's features, and the choice of the active layer by it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from sjepa.bounds import COUNT, INDEX, NOT_NEGATIVE, SHARE
from sjepa.model.encoder import EncoderNetwork

CHUNK = 16  # utterances of the reference set that are encoded together


@dataclass(frozen=True)
class LayerConfig:
    """Which layer of the target encoder the online mixture reads."""

    choice: Annotated[int | None, INDEX] = None
    """A fixed layer, or none to follow the effective rank."""
    frames: Annotated[int, COUNT] = 2000
    """Frames per layer in each measurement."""
    utterances: Annotated[int, COUNT] = 64
    """Utterances of the reference set, which is drawn once from the corpus; each gives at most 2.5 s (ours)."""
    smoothing: Annotated[float, SHARE] = 0.5
    """Weight of the past in the smoothed ranks (ours; the paper gives no value)."""
    hysteresis: Annotated[float, NOT_NEGATIVE] = 0.0
    """Change the active layer only if another's smoothed rank is higher by more than this share of its own (ours; 0
    always follows the highest)."""
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
    """Smoothed effective ranks and the layer that targets read."""

    def __init__(self, config: LayerConfig):
        self.config = config
        self.smoothed: list[float] = []
        self.current: int | None = None
        """The layer of the last check; None before the first."""

    @property
    def active(self) -> int:
        return self.config.choice if self.config.choice is not None else self.current or 0

    def observe(self, ranks: list[float], used: bool = True) -> None:
        """Smooth new ranks and choose again. Hysteresis keeps only a layer that targets read."""
        past = self.config.smoothing
        self.smoothed = [past * a + (1 - past) * b for a, b in zip(self.smoothed or ranks, ranks, strict=True)]
        highest, least = self.highest(), 1.0 + self.config.hysteresis
        if self.current is None or not used or self.smoothed[highest] > least * self.smoothed[self.current]:
            self.current = highest

    def highest(self) -> int:
        return max(range(len(self.smoothed)), key=self.smoothed.__getitem__)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"ranks": self.smoothed, "active_layer": self.current}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; one from before there was hysteresis has the highest rank's layer."""
        self.smoothed = state["ranks"]
        self.current = state.get("active_layer", self.highest() if self.smoothed else None)


@torch.no_grad()
def measure_ranks(encoder: EncoderNetwork, clean: Tensor, frames: int, seed: int) -> list[float] | None:
    """Effective rank of every layer's output on clean, unmasked audio (B, N), over a sample of frames, in fp32.

    The sample depends on the seed alone, so that two measurements differ only by the encoder. None if the features are
    not finite.
    """
    training = encoder.training
    encoder.eval()
    # Uncompiled: this shape and precision come once in thousands of steps.
    with torch.autocast(clean.device.type, enabled=False), torch.compiler.set_stance("force_eager"):
        parts = [torch.stack(encoder(part).hidden_states[1:]) for part in clean.split(CHUNK)]
    encoder.train(training)
    states = torch.cat(parts, dim=1).flatten(1, 2)  # (L, B T, D)
    chosen = torch.randperm(states.shape[1], generator=torch.Generator().manual_seed(seed))[:frames]
    sampled = states[:, chosen.to(states.device)].float()
    return effective_rank(sampled).tolist() if bool(torch.isfinite(sampled).all()) else None
