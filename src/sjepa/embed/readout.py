"""From frames of the encoder to columns of features, posteriors or units with times, as they come."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE, BadAudioError
from sjepa.embed.network import Network
from sjepa.errors import UserError
from sjepa.model.frontend import RECEPTIVE_FIELD, STRIDE, frame_centres

What = Literal["features", "mixture", "head", "units"]
"""Features of layers; posteriors of the mixture or of the cluster head; or the most likely component of either."""
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Readout:
    """What is written of each recording, in pieces of rows.

    `time` is a frame's centre in seconds. A unit that lasts has `start` and `end`, 10 ms around its first and last
    frame's centre. A mean has the `seconds` that it is of.
    """

    what: What
    mean: bool
    """One row per recording: the mean over its frames."""
    deduplicate: bool
    """One row for each run of equal units."""
    names: tuple[str, ...] = ()
    """Names of several states that lie side by side in a frame; each gets a column of its own."""

    def __post_init__(self) -> None:
        if self.deduplicate and self.what != "units":
            raise UserError("--deduplicate is for --what units")
        if self.mean and self.what == "units":
            raise UserError("--pool mean: units are names and have no mean; posteriors do (--what mixture or head)")

    def __call__(self, network: Network, frames: Iterable[Tensor]) -> Iterator[Columns]:
        pieces = self.values(network, frames)
        if self.mean:
            return self.average(pieces)
        if self.deduplicate:
            return deduplicated(pieces)
        return self.timed(pieces)

    def values(self, network: Network, frames: Iterable[Tensor]) -> Iterator[np.ndarray]:
        for x in frames:
            if not bool(torch.isfinite(x).all()):
                raise BadAudioError("the encoder gives features that are not finite numbers")
            if self.what == "units":
                yield network.units(x).to(torch.int32).cpu().numpy()
            else:
                yield (x if self.what == "features" else network.posteriors(x)).float().cpu().numpy()

    def columns(self, values: np.ndarray) -> Columns:
        """Values under their names, several states apart."""
        if self.names:
            apart = np.split(values, len(self.names), axis=1)
            return {f"features_{name}": part for name, part in zip(self.names, apart, strict=True)}
        return {self.what if self.what in ("features", "units") else "posteriors": values}

    def timed(self, pieces: Iterable[np.ndarray]) -> Iterator[Columns]:
        done = 0
        for values in pieces:
            yield self.columns(values) | {"time": frame_centres(len(values), done)}
            done += len(values)

    def average(self, pieces: Iterable[np.ndarray]) -> Iterator[Columns]:
        total, frames = np.zeros(1), 0
        for values in pieces:
            total, frames = total + values.sum(0, dtype=np.float64), frames + len(values)
        seconds = ((frames - 1) * STRIDE + RECEPTIVE_FIELD) / SAMPLE_RATE
        yield self.columns((total / frames).astype(np.float32)[None]) | {"seconds": np.array([seconds])}


def deduplicated(pieces: Iterable[np.ndarray]) -> Iterator[Columns]:
    """A run that goes on into the next piece is written with it."""
    half = STRIDE / 2 / SAMPLE_RATE
    units, begins, done = np.zeros(0, np.int32), np.zeros(0, np.int64), 0

    def columns(units: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> Columns:
        first, last = (
            frame_centres(1)[0] + STRIDE / SAMPLE_RATE * begins,
            frame_centres(1, -1)[0] + STRIDE / SAMPLE_RATE * ends,
        )
        return {"units": units, "start": first - half, "end": last + half}

    for values in pieces:
        before = units[-1:] if len(units) else values[:0]
        changes = np.flatnonzero(np.diff(values, prepend=before if len(before) else values[0] + 1))
        units, begins = np.concatenate([units, values[changes]]), np.concatenate([begins, done + changes])
        done += len(values)
        if len(units) > 1:
            yield columns(units[:-1], begins[:-1], begins[1:])
            units, begins = units[-1:], begins[-1:]
    if len(units):
        yield columns(units, begins, np.array([done]))
