"""Cut a long recording into overlapping windows, and join their frames without a seam.

Frames count from the start of the recording: frame t sees samples [320 t, 320 t + 400). A recording that fits in one
window is encoded whole. A longer one is encoded in overlapping windows; the last window moves back to have full length.
In the overlap of two windows, the frames near the edges are dropped, because the position encoding sees zeros there.
Between them the first window fades into the second. `model/moments.py` normalises each window like the whole recording.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.frames import STRIDE, frame_count
from sjepa.embed.window_config import MARGIN, WindowConfig


class Window(NamedTuple):
    start: int
    """Index of its first frame in the recording."""
    samples: np.ndarray


def cut_windows(blocks: Iterable[np.ndarray], config: WindowConfig) -> Iterator[Window]:
    """Yield the windows of a recording that arrives in blocks, with at most two windows in memory.

    A recording that fits in one window is yielded as one window with all its samples.
    """
    hop = config.frames - config.shared
    held, start = np.zeros(0, np.float32), 0  # samples from frame `start` on
    waiting = 0  # frames from `start` to the next window; earlier ones are kept for the last window
    for block in blocks:
        held = np.concatenate([held, block])
        # Yield a window only when there is a frame after it: until then it may be the last one.
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


def join_windows(parts: Iterable[tuple[int, Tensor]], config: WindowConfig) -> Iterator[Tensor]:
    """Yield the frames (n, D) of the recording in order, given the first frame and the frames of each window."""
    pending: Tensor | None = None  # frames from `done` on, which the next window may change
    done = 0
    for start, x in parts:
        if pending is None:
            pending, done = x, start
            continue
        last = done + len(pending) - MARGIN
        first = last - (config.shared - 2 * MARGIN)
        old, new = pending[first - done : last - done], x[first - start : last - start]
        # Evenly spaced weights between 0 and 1, without either end: every frame of the fade mixes both windows.
        weight = torch.arange(1, len(old) + 1, device=x.device, dtype=x.dtype).unsqueeze(1) / (len(old) + 1)
        yield torch.cat([pending[: first - done], torch.lerp(old, new, weight)])
        pending, done = x[last - start :], last
    if pending is not None:
        yield pending
