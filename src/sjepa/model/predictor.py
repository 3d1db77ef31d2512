"""The predictor h and the cluster head g, which only training uses."""

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
    """The JEPA predictor."""

    heads: Annotated[int, SIZE] = 8
    """Attention heads of the single transformer layer."""
    inner_size: Annotated[int, SIZE] = 1536
    """Width inside the feed-forward block."""
    dropout: Annotated[float, SHARE] = 0.1
    """Dropout rate of the whole layer."""
    positions: Annotated[int, COUNT] = 750
    """Number of learned positions: the longest utterance in frames (750 is 15 s)."""
    position_start: Literal["sinusoid", "normal"] = "sinusoid"
    """Initial values of the learned positions: sinusoids, or noise with standard deviation 0.02."""
    position_base: Annotated[float, POSITIVE] = 10_000.0
    """Longest wavelength of the sinusoids divided by the shortest. With a small base (try 30), neighbouring positions
    differ clearly, and a short run soon learns to attend to them."""
    attention_start: Annotated[float, NOT_NEGATIVE] = 0.0
    """As for the encoder. If positive (try 1.5), a masked frame first attends to frames at nearby positions."""


class Predictor(nn.Module):
    """Predict masked frames with a mask token, learned positions, one transformer layer and a projection."""

    def __init__(self, hidden_size: int, config: PredictorConfig):
        super().__init__()
        if hidden_size % config.heads:
            raise UserError(f"predictor.heads: {config.heads} does not divide encoder.hidden_size {hidden_size}")
        self.mask_token = nn.Parameter(torch.empty(hidden_size).normal_(std=0.02))
        start = torch.empty(config.positions, hidden_size).normal_(std=0.02)
        if config.position_start == "sinusoid":
            start = sinusoids(config.positions, hidden_size, config.position_base)
        self.positions = nn.Parameter(start)
        # ReLU and post-norm, the defaults of torch's TransformerEncoderLayer, match the paper's description.
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
            self.layer.attention.share_queries_and_keys(config.attention_start)

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), True where masked -> (B, T, D)
        x = torch.where(mask.unsqueeze(2), self.mask_token.to(z.dtype), z)
        return self.projection(self.layer(x + self.positions[: x.shape[1]]))


def sinusoids(positions: int, size: int, base: float = 10_000.0) -> Tensor:
    """Return sines and cosines of decreasing frequency. A shift in time is a rotation, which is easy to learn."""
    frequency = torch.exp(torch.arange(0, size, 2) * (-math.log(base) / size))
    angle = torch.arange(positions)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :size]


class ClusterHead(nn.Module):
    """Three linear layers from frame features to logits over K components, for masked and visible frames."""

    def __init__(self, hidden_size: int, components: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), Gelu(), nn.Linear(hidden_size, hidden_size), Gelu()
        )
        self.output = nn.Linear(hidden_size, components)
        self.apply(init_linear)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, K)
        return self.output(self.layers(x))
