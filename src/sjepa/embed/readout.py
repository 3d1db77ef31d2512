"""Turn frames of the encoder into columns of features, posteriors or units, with times."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.frames import STRIDE, frame_centres, sample_count
from sjepa.audio.io import SAMPLE_RATE, BadAudioError
from sjepa.embed.network import Network
from sjepa.errors import UserError

What = Literal["features", "mixture", "head", "units"]
"""Features of layers, posteriors of the mixture or of the cluster head, or units (the most likely components)."""
Columns = dict[str, np.ndarray]


class NotFiniteError(BadAudioError):
    """The features of a recording are not finite numbers."""


@dataclass(frozen=True)
class Readout:
    """Which columns are written for each recording.

    `time` is the centre of a frame in seconds. A deduplicated unit has `start` and `end`: 10 ms before the centre of
    its first frame and 10 ms after that of its last. A mean has the length of its recording in `seconds`.
    """

    what: What
    mean: bool
    """Write one row per recording: the mean over its frames."""
    deduplicate: bool
    """Write one row for each run of equal units."""
    names: tuple[str, ...] = ()
    """Names of the concatenated states; each gets its own column."""

    def __post_init__(self) -> None:
        if self.deduplicate and self.what != "units":
            raise UserError("--deduplicate is only for --what units")
        if self.mean and self.what == "units":
            raise UserError("--pool mean: units are categories and have no mean; use --what mixture or --what head")

    def __call__(self, network: Network, frames: Iterable[Tensor]) -> Iterator[Columns]:
        pieces = self.values(network, frames)
        if self.mean:
            return self.average(pieces)
        if self.deduplicate:
            return deduplicate_units(pieces)
        return self.add_times(pieces)

    def values(self, network: Network, frames: Iterable[Tensor]) -> Iterator[np.ndarray]:
        for x in frames:
            if not bool(torch.isfinite(x).all()):
                raise NotFiniteError("the encoder's features are not finite numbers")
            if self.what == "units":
                yield network.units(x).to(torch.int32).cpu().numpy()
            else:
                yield (x if self.what == "features" else network.posteriors(x)).float().cpu().numpy()

    def columns(self, values: np.ndarray) -> Columns:
        """Name the values, with one column per state."""
        if self.names:
            states = np.split(values, len(self.names), axis=1)
            return {f"features_{name}": state for name, state in zip(self.names, states, strict=True)}
        return {self.what if self.what in ("features", "units") else "posteriors": values}

    def add_times(self, pieces: Iterable[np.ndarray]) -> Iterator[Columns]:
        done = 0
        for values in pieces:
            yield self.columns(values) | {"time": frame_centres(len(values), done)}
            done += len(values)

    def average(self, pieces: Iterable[np.ndarray]) -> Iterator[Columns]:
        total, frames = np.zeros(1), 0
        for values in pieces:
            total, frames = total + values.sum(0, dtype=np.float64), frames + len(values)
        if not frames:
            return
        seconds = sample_count(frames) / SAMPLE_RATE
        yield self.columns((total / frames).astype(np.float32)[None]) | {"seconds": np.array([seconds])}


def deduplicate_units(pieces: Iterable[np.ndarray]) -> Iterator[Columns]:
    """Merge runs of equal units. A run that continues in the next piece is written with that piece."""
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
