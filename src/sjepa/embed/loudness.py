"""The first layer's norm over a whole recording, for windows of it.

The encoder normalises the channels of its first convolution over time, so a quiet window would be made as loud as the
others, and neighbouring windows would disagree. A first pass over the recording gathers the statistics that the norm
has on the whole of it; in a window, the norm's scale and shift are changed so that they undo its statistics there and
give those of the recording.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from sjepa.model.encoder import Encoder
from sjepa.model.frontend import KERNELS, STRIDES, ConvLayer, window_moments

LAYER = "feature_extractor.conv_layers.0.layer_norm"


class Moments(NamedTuple):
    """Of the stretches of ten samples that the first convolution reads."""

    mean: Tensor  # (10,)
    covariance: Tensor  # (10, 10)


def moments_of(blocks: Iterable[np.ndarray]) -> Moments:
    """Moments of a recording that arrives in blocks."""
    kernel, stride = KERNELS[0], STRIDES[0]
    held, count = np.zeros(0, np.float32), 0
    total, products = np.zeros(kernel), np.zeros((kernel, kernel))
    for block in blocks:
        held = np.concatenate([held, block])
        if len(held) < kernel:
            continue
        stretches = np.lib.stride_tricks.sliding_window_view(held, kernel)[::stride].astype(np.float64)
        count += len(stretches)
        total += stretches.sum(0)
        products += stretches.T @ stretches
        held = held[stride * len(stretches) :]
    mean = total / max(count, 1)
    covariance = products / max(count, 1) - np.outer(mean, mean)
    return Moments(torch.from_numpy(mean).float(), torch.from_numpy(covariance).float())


def norm_for(encoder: Encoder, waveform: Tensor, recording: Moments) -> dict[str, Tensor]:
    """Scale and shift of the norm with which a window, (1, N), comes out as within its recording."""
    layer = cast(ConvLayer, encoder.feature_extractor.conv_layers[0])
    norm, taps = layer.layer_norm, layer.conv.weight[:, 0]  # (C, 10)
    mean, covariance = window_moments(waveform, None)

    def of_channels(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        variance = ((taps @ covariance) * taps).sum(1).clamp(min=0)
        return taps @ mean, torch.sqrt(variance + norm.eps)

    here, here_deviation = of_channels(mean[0], covariance[0])
    there, there_deviation = of_channels(*(moment.to(waveform.device) for moment in recording))
    return {
        f"{LAYER}.weight": norm.weight * here_deviation / there_deviation,
        f"{LAYER}.bias": norm.bias + norm.weight * (here - there) / there_deviation,
    }
