"""Block masks: spans of frames until a set share of each utterance is masked."""

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class MaskConfig:
    """Which frames are hidden from the encoder; the defaults are the paper's."""

    ratio: float = 0.65
    """Share of an utterance's frames that is masked."""
    span: int = 10
    """Frames in a span."""
    method: Literal["distinct", "overlapping"] = "distinct"
    """`distinct` masks exactly the ratio; `overlapping` draws ratio * T / span spans as HuBERT does, about 49%."""


def block_mask(frames: int, config: MaskConfig, generator: np.random.Generator) -> np.ndarray:
    """True at masked frames of one utterance."""
    if config.method == "overlapping":
        return overlapping_mask(frames, config, generator)
    wanted = round(config.ratio * frames)
    span = min(config.span, wanted)
    if span <= 0:
        return np.zeros(frames, dtype=bool)
    # Spans arrive in random order. A frame is masked by the first that covers it: a sliding minimum over arrival times.
    arrival = np.full(frames + span - 1, np.inf)
    arrival[span - 1 : frames] = generator.permutation(frames - span + 1)
    covered_at = np.lib.stride_tricks.sliding_window_view(arrival, span).min(axis=1)
    in_order = np.sort(covered_at)
    # Keep whole spans while they fit ...
    last = in_order[wanted - 1]
    if in_order[min(wanted, frames - 1)] > last or wanted == frames:
        return covered_at <= last
    mask = covered_at < last
    # ... then go on with those that do not add more than is missing.
    grow(mask, wanted - int(mask.sum()), span, generator)
    return mask


def grow(mask: np.ndarray, missing: int, span: int, generator: np.random.Generator) -> None:
    """Mask `missing` more frames, fewer than a span, by random spans that lean on what is masked."""
    while missing:
        gains = np.lib.stride_tricks.sliding_window_view(~mask, span).sum(axis=1)
        start = int(generator.choice(np.flatnonzero((gains > 0) & (gains <= missing))))
        mask[start : start + span] = True
        missing -= int(gains[start])


def overlapping_mask(frames: int, config: MaskConfig, generator: np.random.Generator) -> np.ndarray:
    span = min(config.span, frames)
    places = frames - span + 1
    count = min(places, int(config.ratio * frames / span + generator.random()))
    starts = generator.choice(places, count, replace=False)
    mask = np.zeros(frames, dtype=bool)
    mask[(starts[:, None] + np.arange(span)).reshape(-1)] = True
    return mask
