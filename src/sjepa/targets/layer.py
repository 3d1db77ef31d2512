"""The effective rank of each layer, and the choice of the active layer."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from sjepa.bounds import COUNT, INDEX, NOT_NEGATIVE, SHARE
from sjepa.model.encoder import EncoderNetwork

CHUNK = 16  # utterances of the reference set per forward pass


@dataclass(frozen=True)
class LayerConfig:
    """Which layer of the target encoder the online mixture reads."""

    choice: Annotated[int | None, INDEX] = None
    """A fixed layer, or None to use the layer with the highest effective rank."""
    frames: Annotated[int, COUNT] = 2000
    """Frames per layer in each measurement."""
    utterances: Annotated[int, COUNT] = 64
    """Utterances of the reference set, drawn once from the corpus, at most 2.5 s each (not in the paper)."""
    smoothing: Annotated[float, SHARE] = 0.5
    """Weight of earlier measurements in the smoothed ranks (the paper gives no value)."""
    hysteresis: Annotated[float, NOT_NEGATIVE] = 0.0
    """Change the active layer only if the smoothed rank of another layer is higher by more than this share (not
    in the paper; 0 always uses the highest)."""
    on_change: Literal["carry", "anchor"] = "carry"
    """When the layer changes, carry keeps the mixture as it is (paper), and anchor first moves its components to their
    frames in the new layer (not in the paper)."""


@torch.no_grad()
def effective_rank(features: Tensor) -> Tensor:
    """Return exp(entropy) of the normalised singular values of centred features: (..., N, D) -> (...)."""
    features = features.double()
    centred = features - features.mean(-2, keepdim=True)
    # Their squares are the eigenvalues of a D x D matrix, which is much faster. fp64 makes up for the squaring.
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
        """The layer chosen at the last check, or None before the first."""
        self.held: int | None = None
        """The layer that the targets of this phase read in the last step, or that they were fitted to."""

    @property
    def chosen(self) -> int:
        """The layer that online targets read from the next step."""
        layers = (self.config.choice, self.current, 0)
        return next(layer for layer in layers if layer is not None)

    @property
    def active(self) -> int:
        """The layer that targets read in the last step, or read first."""
        return self.chosen if self.held is None else self.held

    def hold(self) -> None:
        """Keep the active layer whatever later checks choose, until `follow` or `release`."""
        self.held = self.active

    def release(self) -> None:
        """Use the layer that the last check chose."""
        self.held = None

    def follow(self) -> None:
        """Hold the layer that the last check chose."""
        self.held = self.chosen

    def observe(self, effective_ranks: list[float], used: bool = True) -> None:
        """Add new ranks to the average and choose the layer. Hysteresis applies only if targets read the layer."""
        past = self.config.smoothing
        self.smoothed = [
            past * a + (1 - past) * b for a, b in zip(self.smoothed or effective_ranks, effective_ranks, strict=True)
        ]
        highest, least = self.highest_layer(), 1.0 + self.config.hysteresis
        if self.current is None or not used or self.smoothed[highest] > least * self.smoothed[self.current]:
            self.current = highest

    def highest_layer(self) -> int:
        return max(range(len(self.smoothed)), key=self.smoothed.__getitem__)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"ranks": self.smoothed, "active_layer": self.current, "held_layer": self.held}

    def load(self, state: dict[str, Any]) -> None:
        """Restore from a checkpoint."""
        self.smoothed, self.current, self.held = state["ranks"], state["active_layer"], state.get("held_layer")


@torch.no_grad()
def measure_effective_ranks(encoder: EncoderNetwork, clean: Tensor, frames: int, seed: int) -> list[float] | None:
    """Return the effective rank of every layer on clean, unmasked audio (B, N), over a sample of frames, in fp32.

    The sample depends only on the seed, so two measurements differ only by the encoder. Return None if the features
    are not finite.
    """
    training = encoder.training
    encoder.eval()
    # Do not compile: this shape and precision occur once in thousands of steps.
    with torch.autocast(clean.device.type, enabled=False), torch.compiler.set_stance("force_eager"):
        parts = [torch.stack(encoder(part).hidden_states[1:]) for part in clean.split(CHUNK)]
    encoder.train(training)
    states = torch.cat(parts, dim=1).flatten(1, 2)  # (L, B T, D)
    chosen = torch.randperm(states.shape[1], generator=torch.Generator().manual_seed(seed))[:frames]
    sampled = states[:, chosen.to(states.device)].float()
    return effective_rank(sampled).tolist() if bool(torch.isfinite(sampled).all()) else None
