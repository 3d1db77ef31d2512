"""The convolutional front end: waveform to 50 frames a second, written as plain matrix products.

Activations lie as rows (time, channels), all utterances one after the other. A stride-2 convolution then reads
pairs of rows, which is a reshape, and needs no copy; `tests/test_encoder.py` holds it against Hugging Face's
convolutions.
"""

from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.audio.io import SAMPLE_RATE
from sjepa.model.abilities import use_kernels
from sjepa.model.activation import gelu

KERNELS = (10, 3, 3, 3, 3, 2, 2)
STRIDES = (5, 2, 2, 2, 2, 2, 2)
STRIDE = 320  # samples between frames: 20 ms at 16 kHz
RECEPTIVE_FIELD = 400  # samples that one frame sees: frame t covers [320 t, 320 t + 400)
# Frames of a piece without gradients on a CPU: at 512 channels no buffer exceeds 32 MB, above which the C library gives
# memory back to the system each time, and getting it again costs more than GELU.
CPU_FRAMES = 240


def frame_count(samples: int) -> int:
    """Frames that the front end makes of a waveform, 0 if it is shorter than one receptive field."""
    return max(0, (samples - RECEPTIVE_FIELD) // STRIDE + 1)


def frame_centres(frames: int, first: int = 0) -> np.ndarray:
    """Seconds at the middle of what each of so many frames sees."""
    return (STRIDE * np.arange(first, first + frames) + RECEPTIVE_FIELD // 2) / SAMPLE_RATE


def frame_counts(samples: Tensor) -> Tensor:
    return ((samples - RECEPTIVE_FIELD) // STRIDE + 1).clamp(min=0)


class ConvLayer(nn.Module):
    """Holds one convolution's weight under its Hugging Face name."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, norm: bool):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, stride, bias=False)
        nn.init.kaiming_normal_(self.conv.weight)
        if norm:
            self.layer_norm = nn.GroupNorm(out_channels, out_channels)


class FeatureExtractor(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv_layers = nn.ModuleList(
            ConvLayer(1 if i == 0 else channels, channels, kernel, stride, norm=i == 0)
            for i, (kernel, stride) in enumerate(zip(KERNELS, STRIDES, strict=True))
        )

    def forward(self, waveforms: Tensor, lengths: Tensor | None = None) -> Tensor:  # (B, N) -> (B, T, C)
        batch, samples = waveforms.shape
        first, *others = cast(list[ConvLayer], list(self.conv_layers))
        weight = normalized_weight(first, waveforms, lengths)
        by_tap = [layer.conv.weight.permute(2, 1, 0) for layer in others]  # (taps, C, C') each
        if waveforms.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return convolve(waveforms, weight, by_tap)
        by_tap = [matrices.contiguous() for matrices in by_tap]
        hop = STRIDE * max(32, CPU_FRAMES // batch)
        starts = range(0, STRIDE * frame_count(samples), hop)
        pieces = (waveforms[:, start : start + hop + RECEPTIVE_FIELD - STRIDE] for start in starts)
        return torch.cat([convolve(piece, weight, by_tap) for piece in pieces], dim=1)


def convolve(waveforms: Tensor, weight: Tensor, by_tap: list[Tensor]) -> Tensor:
    """All layers: the first by a weight an utterance, (B, 16, C), the others by a matrix a tap, (taps, C, C')."""
    batch, samples = waveforms.shape
    frames = frame_count(samples)
    rows = 64 * (frames + 1)  # one spare frame an utterance keeps every layer's rows even
    x = first_layer(waveforms, weight, rows).flatten(0, 1)
    for matrices in by_tap:
        x = gelu(halve(x, matrices))
    # The last utterance's spare frame has been eaten by the 3-tap layers; put a row back so that all are alike.
    return F.pad(x, (0, 0, 0, 1)).view(batch, frames + 1, -1)[:, :frames]


def halve(x: Tensor, by_tap: Tensor) -> Tensor:
    """A stride-2 convolution with 2 or 3 taps over rows: (R, C), (taps, C, C') -> about (R / 2, C')."""
    channels, taps = x.shape[1], len(by_tap)
    rows = (x.shape[0] - taps) // 2 + 1
    y = x[: 2 * rows].view(rows, 2 * channels) @ by_tap[:2].flatten(0, 1)
    if taps == 3:
        third = x[2 : 2 * rows + 1 : 2]
        if x.is_cuda:
            # The views keep the compiler from making the sum part of the product, which would copy y first.
            y = (y.view(rows, 1, -1) + (third @ by_tap[2]).view(rows, 1, -1)).view(rows, -1)
        else:
            y = torch.addmm(y, third, by_tap[2]) if y.requires_grad else y.addmm_(third, by_tap[2].to(y.dtype))
    return y


def normalized_weight(layer: ConvLayer, waveforms: Tensor, lengths: Tensor | None) -> Tensor:
    """Convolution 0 and its GroupNorm (a group is a channel) as one weight an utterance: (B, 16, C).

    The convolution is linear in windows of 10 samples, so the mean and variance of each of its channels follow
    from the windows' mean and 10 x 10 covariance. The norm becomes a scale of the taps (rows 0 to 9) and a shift
    (row 10); rows up to 16 are zero. Windows beyond an utterance's length do not count.
    """
    norm, taps = layer.layer_norm, layer.conv.weight[:, 0]  # (C, 10)
    with torch.autocast(waveforms.device.type, enabled=False):
        mean, covariance = window_moments(waveforms, lengths)
        taps = taps.float()
        variance = ((taps @ covariance) * taps).sum(2)  # (B, C)
        scale = norm.weight * torch.rsqrt(variance.clamp(min=0) + norm.eps)
        shift = norm.bias - scale * (mean @ taps.t())
        return F.pad(torch.cat([taps.t() * scale.unsqueeze(1), shift.unsqueeze(1)], dim=1), (0, 0, 0, 5))


def window_moments(waveforms: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean (B, 10) and covariance (B, 10, 10) of the windows that convolution 0 reads."""
    batch = waveforms.shape[0]
    windows = waveforms.float().unfold(1, KERNELS[0], STRIDES[0])  # (B, W, 10)
    if lengths is None:
        count: Tensor | float = windows.shape[1]
        mean = windows.mean(1)
        centred = windows - mean[:, None]
    else:
        valid = (lengths - KERNELS[0]) // STRIDES[0] + 1
        count = valid.view(-1, 1, 1)
        inside = (torch.arange(windows.shape[1], device=waveforms.device) < valid[:, None]).unsqueeze(2)
        mean = (windows * inside).sum(1) / valid[:, None]
        centred = (windows - mean[:, None]) * inside
    # In chunks, because one long product with a 10 x 10 result keeps a GPU idle.
    centred = F.pad(centred, (0, 0, 0, -centred.shape[1] % 512)).view(batch, -1, 512, KERNELS[0])
    return mean, (centred.transpose(2, 3) @ centred).sum(1) / count


def first_layer(waveforms: Tensor, weight: Tensor, rows: int) -> Tensor:
    """GELU of each window of ten samples times the utterance's weight: (B, N), (B, 16, C) -> (B, rows, C)."""
    kernel, stride, device = KERNELS[0], STRIDES[0], waveforms.device.type
    needed = stride * (rows - 1) + kernel
    padded = F.pad(waveforms.float(), (0, needed - waveforms.shape[1]))
    channels = weight.shape[2]
    tiles = channels % 128 == 0 or channels in (16, 32, 64)
    if tiles and not waveforms.requires_grad and use_kernels(waveforms):  # the kernel has no gradient for the samples
        from sjepa.model import kernels

        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        return kernels.first_layer(padded, weight, rows, dtype)
    return gelu(torch.baddbmm(weight[:, kernel : kernel + 1], padded.unfold(1, kernel, stride), weight[:, :kernel]))
