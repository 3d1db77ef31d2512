"""Statistics of a recording that arrives in blocks, for the norm of the encoder's first layer.

The encoder normalises the channels of its first convolution over time. If a part of a recording were normalised alone,
it would become as loud as any other part. With the statistics of the whole recording, or of all audio so far, a part
has the same features as within its recording.
"""

from collections.abc import Iterable

import numpy as np
import torch

from sjepa.model.encoder_config import KERNELS, STRIDES
from sjepa.model.frontend import Moments


class RunningMoments:
    """Moments of all audio so far, in fp64."""

    def __init__(self) -> None:
        kernel = KERNELS[0]
        self.held, self.count = np.zeros(0, np.float32), 0
        self.total, self.products = np.zeros(kernel), np.zeros((kernel, kernel))

    def add(self, block: np.ndarray) -> None:
        """Add the next samples (float32)."""
        kernel, stride = KERNELS[0], STRIDES[0]
        self.held = np.concatenate([self.held, block])
        if len(self.held) < kernel:
            return
        windows = np.lib.stride_tricks.sliding_window_view(self.held, kernel)[::stride].astype(np.float64)
        self.count += len(windows)
        self.total += windows.sum(0)
        self.products += windows.T @ windows
        self.held = self.held[stride * len(windows) :]

    def read(self, device: torch.device | str = "cpu") -> Moments:
        """Return the moments, for a batch of one."""
        mean = self.total / max(self.count, 1)
        covariance = self.products / max(self.count, 1) - np.outer(mean, mean)
        return Moments(*(torch.from_numpy(x[None]).float().to(device) for x in (mean, covariance)))


def measure_moments(blocks: Iterable[np.ndarray]) -> Moments:
    """Return the moments of a whole recording."""
    moments = RunningMoments()
    for block in blocks:
        moments.add(block)
    return moments.read()
