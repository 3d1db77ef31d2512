"""Block masks: spans of frames until a set share of each utterance is masked."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from sjepa.bounds import COUNT, SHARE


@dataclass(frozen=True)
class MaskConfig:
    """Which frames are hidden from the encoder."""

    ratio: Annotated[float, SHARE] = 0.65
    """Share of frames that are masked in each utterance."""
    lowest: Annotated[float | None, SHARE] = None
    """Draw the share of each utterance between this and `ratio`, so that the encoder also sees speech that is almost
    unmasked, as in later use. None: every utterance has `ratio`."""
    span: Annotated[int, COUNT] = 10
    """Frames per span."""
    method: Literal["distinct", "overlapping"] = "distinct"
    """`distinct` masks exactly the ratio. `overlapping` draws ratio * T / span spans as HuBERT does, which masks about
    49%."""
    views: Annotated[int, COUNT] = 1
    """Masks drawn for each utterance of a batch. The encoder and the predictor run once per mask. The front end and the
    targets are computed once for all masks, so each further mask adds about 0.4 of a step's time (the
    paper has one)."""


def block_mask(frames: int, config: MaskConfig, generator: np.random.Generator) -> np.ndarray:
    """Draw the mask of one utterance: True at masked frames."""
    ratio = config.ratio
    if config.lowest is not None:
        ratio = config.lowest + (ratio - config.lowest) * generator.random()
    if config.method == "overlapping":
        return overlapping_mask(frames, ratio, config.span, generator)
    wanted = round(ratio * frames)
    span = min(config.span, wanted)
    if span <= 0:
        return np.zeros(frames, dtype=bool)
    # Go through the spans in random order, and use each that masks new frames but not too many. Plain bytes are several
    # times faster here than arrays.
    mask, missing = bytearray(frames), wanted
    starts = generator.permutation(frames - span + 1).tolist()
    while missing:
        for start in starts:
            new = mask.count(0, start, start + span)
            if 0 < new <= missing:
                mask[start : start + span] = b"\1" * span
                missing -= new
                if not missing:
                    break
    return np.frombuffer(mask, dtype=bool)


def draw_views(frames: int, config: MaskConfig, generator: np.random.Generator) -> np.ndarray:
    """Draw all masks of one utterance: (views, frames)."""
    return np.stack([block_mask(frames, config, generator) for _ in range(config.views)])


def overlapping_mask(frames: int, ratio: float, span: int, generator: np.random.Generator) -> np.ndarray:
    span = min(span, frames)
    places = frames - span + 1
    count = min(places, int(ratio * frames / span + generator.random()))
    starts = generator.choice(places, count, replace=False)
    mask = np.zeros(frames, dtype=bool)
    mask[(starts[:, None] + np.arange(span)).reshape(-1)] = True
    return mask
