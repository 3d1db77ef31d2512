"""A long recording in overlapping windows, and their frames joined again without a seam.

Frames count as for the whole recording: frame t sees samples [320 t, 320 t + 400). A recording of at most one window is
encoded whole. A longer one is encoded in windows that overlap; the last is moved back to be as long as the others.
Where two windows overlap, frames near their edges are dropped, because the position encoding sees zeros there, and
between those the first window fades into the second. How loud a window is within its recording: `model/moments.py`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sjepa.bounds import LENGTH, check_bounds
from sjepa.errors import UserError
from sjepa.model.frontend import FRAMES_PER_SECOND, STRIDE, frame_count, sample_count

MARGIN = 75  # frames dropped at an inner edge; the paper's position encoding reaches 64


@dataclass(frozen=True)
class WindowConfig:
    """How long recordings are cut."""

    seconds: Annotated[float, LENGTH] = 30.0
    """Length of a window; recordings up to this are encoded whole. Memory grows with it."""
    overlap: Annotated[float, LENGTH] = 5.0
    """Seconds that neighbouring windows share, at least 3.02: 1.5 at each edge are dropped, the middle is faded."""

    def __post_init__(self) -> None:
        check_bounds(self, "window.")
        if self.shared <= 2 * MARGIN:
            raise UserError(
                f"window.overlap: {self.overlap:g} s are too few; windows share more than {2 * MARGIN / 50} s"
            )
        if self.frames < 2 * self.shared:
            raise UserError(f"window.seconds: {self.seconds:g} s are less than twice the overlap, {self.overlap:g} s")

    @property
    def frames(self) -> int:
        return round(self.seconds * FRAMES_PER_SECOND)

    @property
    def shared(self) -> int:
        """Frames that neighbouring windows share."""
        return round(self.overlap * FRAMES_PER_SECOND)

    @property
    def samples(self) -> int:
        """Samples of a window: those that its frames see."""
        return sample_count(self.frames)


class Window(NamedTuple):
    start: int
    """Its first frame in the recording."""
    samples: np.ndarray


def cut(blocks: Iterable[np.ndarray], config: WindowConfig) -> Iterator[Window]:
    """Windows of a recording that arrives in blocks; holds at most two windows of it.

    A recording of at most one window comes as one window with all its samples.
    """
    hop = config.frames - config.shared
    held, start = np.zeros(0, np.float32), 0  # samples from frame `start` on
    waiting = 0  # frames from `start` to the next window; what lies before is kept for the last one
    for block in blocks:
        held = np.concatenate([held, block])
        # A window goes out only when a frame beyond it is there: until then it may be the last one.
        while frame_count(len(held)) > waiting + config.frames:
            held, start = held[waiting * STRIDE :], start + waiting
            yield Window(start, held[: config.samples].copy())
            waiting = hop
    frames = frame_count(len(held))
    if not start and not waiting:
        yield Window(0, held)
    else:
        last = frames - config.frames
        yield Window(start + last, held[last * STRIDE :][: config.samples])


def join(parts: Iterable[tuple[int, Tensor]], config: WindowConfig) -> Iterator[Tensor]:
    """Frames (n, D) of the whole recording, in order, from those of its windows with their starts."""
    pending: Tensor | None = None  # frames from `done` on, which the next window may still change
    done = 0
    for start, x in parts:
        if pending is None:
            pending, done = x, start
            continue
        last = done + len(pending) - MARGIN
        first = last - (config.shared - 2 * MARGIN)
        old, new = pending[first - done : last - done], x[first - start : last - start]
        # The steps of the weight are all alike: neither end of the fade is one of the windows alone.
        weight = torch.arange(1, len(old) + 1, device=x.device, dtype=x.dtype).unsqueeze(1) / (len(old) + 1)
        yield torch.cat([pending[: first - done], torch.lerp(old, new, weight)])
        pending, done = x[last - start :], last
    if pending is not None:
        yield pending
