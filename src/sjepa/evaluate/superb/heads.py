"""Trainable parts on top of a frozen encoder: a weighted sum of its layers, and the task's head.

Features are on the device. Frame counts are on the CPU, because they are needed as integers.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

DROPOUT = 0.2  # after each recurrent layer
PROJECTION = 256  # width of the heads without recurrence


class WeightedSum(nn.Module):
    """Average hidden states with softmax weights, initially equal: (B, S, T, D) -> (B, T, D)."""

    def __init__(self, states: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(states))

    def forward(self, states: Tensor) -> Tensor:
        return torch.einsum("s,bstd->btd", self.weights.softmax(0), states.to(self.weights.dtype))


class RecurrentHead(nn.Module):
    """Projection, two bidirectional LSTM layers, and an output per frame, for ASR and slot filling."""

    def __init__(self, dimension: int, outputs: int, width: int = 1024):
        super().__init__()
        self.projection = nn.Linear(dimension, width)
        self.layers = nn.ModuleList(
            nn.LSTM(size, width, batch_first=True, bidirectional=True) for size in (width, 2 * width)
        )
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(2 * width, outputs)

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:  # (B, T, D) -> (B, T, outputs)
        x = self.projection(x)
        for layer in self.layers:
            x = self.dropout(run_both_ways(cast(nn.LSTM, layer), x, frames))
        return self.output(x)


def run_both_ways(layer: nn.LSTM, x: Tensor, frames: Tensor) -> Tensor:
    """Run a bidirectional LSTM on utterances of different lengths: (B, T, D) -> (B, T, 2 * width)."""
    return run_packed(layer, x, frames) if x.is_cuda else run_each_way(layer, x, frames)


def run_packed(layer: nn.LSTM, x: Tensor, frames: Tensor) -> Tensor:
    """Run both directions together on packed utterances. Their gradients are slow on a CPU."""
    packed, _ = layer(pack_padded_sequence(x, frames, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0]


def run_each_way(layer: nn.LSTM, x: Tensor, frames: Tensor) -> Tensor:
    """Run each direction as an LSTM of its own: many times faster on a CPU (benchmarks/recurrent_head.py).

    Reversed utterances keep their padding at the end, where it reaches no real frame.
    """
    rows, positions, counts = torch.arange(len(x))[:, None], torch.arange(x.shape[1]), frames[:, None]
    reverse = torch.where(positions < counts, counts - 1 - positions, positions)
    weights: list[Tensor] = list(layer.parameters())
    start = x.new_zeros(1, len(x), layer.hidden_size)
    directions = []
    for own, order in ((weights[:4], positions), (weights[4:], reverse)):
        y = torch.lstm(x[rows, order], (start, start), own, True, 1, 0.0, layer.training, False, True)[0]
        directions.append(y[rows, order])
    return torch.cat(directions, dim=2)


class FrameHead(nn.Module):
    """Two linear layers per frame, for phoneme recognition."""

    def __init__(self, dimension: int, outputs: int):
        super().__init__()
        self.projection = nn.Linear(dimension, PROJECTION)
        self.output = nn.Linear(PROJECTION, outputs)

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:  # (B, T, D) -> (B, T, outputs)
        return self.output(self.projection(x))


class UtteranceHead(nn.Module):
    """Projection, mean over frames, and a classifier, for labels of whole utterances."""

    def __init__(self, dimension: int, outputs: int):
        super().__init__()
        self.projection = nn.Linear(dimension, PROJECTION)
        self.output = nn.Linear(PROJECTION, outputs)

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:  # (B, T, D) -> (B, outputs)
        counts = frames.to(x.device)[:, None]
        inside = torch.arange(x.shape[1], device=x.device) < counts
        total = (self.projection(x) * inside.unsqueeze(2)).sum(1)
        return self.output(total / counts)
