"""The predictor h and the cluster head g: used in training only, discarded afterwards."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from sjepa.bounds import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, SIZE
from sjepa.errors import UserError
from sjepa.model.activation import Gelu
from sjepa.model.encoder import init_linear
from sjepa.model.transformer import TransformerLayer


@dataclass(frozen=True)
class PredictorConfig:
    """The JEPA predictor; the defaults are the paper's."""

    heads: Annotated[int, SIZE] = 8
    """Attention heads of its one transformer layer."""
    inner_size: Annotated[int, SIZE] = 1536
    """Width inside its feed-forward block."""
    dropout: Annotated[float, SHARE] = 0.1
    """Dropout throughout the layer."""
    positions: Annotated[int, COUNT] = 750
    """Learned positions: the longest utterance in frames (750 are 15 s)."""
    position_start: Literal["sinusoid", "normal"] = "sinusoid"
    """What the learned positions start as: sinusoids, or noise of deviation 0.02, which says almost nothing."""
    position_base: Annotated[float, POSITIVE] = 10_000.0
    """Longest wavelength of the sinusoids over the shortest. A small base (try 30) tells neighbours apart clearly, so
    that a short run soon learns to look at them."""
    attention_start: Annotated[float, NOT_NEGATIVE] = 0.0
    """As the encoder's; above 0 (try 1.5) a masked frame first attends to frames whose positions are near its own."""


class Predictor(nn.Module):
    """Fills masked positions: mask token, learned positions, one transformer layer, a projection."""

    def __init__(self, hidden_size: int, config: PredictorConfig):
        super().__init__()
        if hidden_size % config.heads:
            raise UserError(f"predictor.heads: {config.heads} does not divide encoder.hidden_size {hidden_size}")
        self.mask_token = nn.Parameter(torch.empty(hidden_size).normal_(std=0.02))
        start = torch.empty(config.positions, hidden_size).normal_(std=0.02)
        if config.position_start == "sinusoid":
            start = sinusoids(config.positions, hidden_size, config.position_base)
        self.positions = nn.Parameter(start)
        # ReLU, post-norm: the defaults of torch's TransformerEncoderLayer, which the paper's wording describes.
        self.layer = TransformerLayer(
            hidden_size,
            config.heads,
            config.inner_size,
            dropout=config.dropout,
            attention_dropout=config.dropout,
            activation_dropout=config.dropout,
            activation="relu",
        )
        self.projection = nn.Linear(hidden_size, hidden_size)
        self.apply(init_linear)
        if config.attention_start:
            self.layer.attention.start_alike(config.attention_start)

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), True where masked -> (B, T, D)
        x = torch.where(mask.unsqueeze(2), self.mask_token.to(z.dtype), z)
        return self.projection(self.layer(x + self.positions[: x.shape[1]]))


def sinusoids(positions: int, size: int, base: float = 10_000.0) -> Tensor:
    """Sines and cosines of falling frequency: a shift in time is a rotation, which attention learns easily."""
    frequency = torch.exp(torch.arange(0, size, 2) * (-math.log(base) / size))
    angle = torch.arange(positions)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :size]


class ClusterHead(nn.Module):
    """Three linear layers from frame features to logits over K components, shared by both paths."""

    def __init__(self, hidden_size: int, components: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), Gelu(), nn.Linear(hidden_size, hidden_size), Gelu()
        )
        self.output = nn.Linear(hidden_size, components)
        self.apply(init_linear)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, K)
        return self.output(self.layers(x))
