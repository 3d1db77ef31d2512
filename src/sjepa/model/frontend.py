"""The convolutional feature extractor: waveform to 50 frames per second, computed as matrix products.

Activations are rows (time, channels), with all utterances concatenated. A stride-2 convolution reads pairs of rows,
which is a reshape without a copy. `tests/test_encoder.py` compares the result with Hugging Face's convolutions.
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.audio.frames import RECEPTIVE_FIELD, STRIDE, frame_count
from sjepa.model.activation import gelu
from sjepa.model.encoder_config import KERNELS, STRIDES
from sjepa.model.gpu_support import can_use_kernels

# Frames per piece for CPU inference. At 512 channels, no buffer exceeds 32 MB. The C library returns larger buffers to
# the system after each use, and allocating them again costs more than GELU.
CPU_FRAMES = 240
VARIANCE_FLOOR = 1e-7  # added to the variance of a waveform, as in Hugging Face's feature extractor


def frame_counts(samples: Tensor) -> Tensor:
    """Compute `frame_count` for a tensor of lengths."""
    return ((samples - RECEPTIVE_FIELD) // STRIDE + 1).clamp(min=0)


class Moments(NamedTuple):
    """Statistics of the windows of ten samples that the first convolution reads, for its norm."""

    mean: Tensor  # (B, 10)
    covariance: Tensor  # (B, 10, 10)


class ConvLayer(nn.Module):
    """One convolution, with the weight names of Hugging Face."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, norm: bool):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, stride, bias=False)
        nn.init.kaiming_normal_(self.conv.weight)
        if norm:
            self.layer_norm = nn.GroupNorm(out_channels, out_channels)


class FeatureExtractor(nn.Module):
    """Seven strided convolutions from samples to frames."""

    def __init__(self, channels: int):
        super().__init__()
        # Whether the weights expect waveforms with zero mean and unit variance. Those of sjepa do not.
        self.normalizes_waveforms = False
        self.conv_layers = nn.ModuleList(
            ConvLayer(1 if i == 0 else channels, channels, kernel, stride, norm=i == 0)
            for i, (kernel, stride) in enumerate(zip(KERNELS, STRIDES, strict=True))
        )

    def forward(
        self, waveforms: Tensor, lengths: Tensor | None = None, moments: Moments | None = None
    ) -> Tensor:  # (B, N) -> (B, T, C)
        """Return the features of waveforms. With `moments`, the first norm uses these statistics."""
        batch, samples = waveforms.shape
        first, *others = cast(list[ConvLayer], list(self.conv_layers))
        moments = moments or window_moments(waveforms, lengths)
        weight = normalized_weight(first, *moments, normalizes_waveforms=self.normalizes_waveforms)
        by_tap = [layer.conv.weight.permute(2, 1, 0) for layer in others]  # (taps, C, C') each
        if not is_cpu_inference(waveforms):
            return convolve(waveforms, weight, by_tap)
        by_tap = [matrices.contiguous() for matrices in by_tap]
        hop = STRIDE * max(32, CPU_FRAMES // batch)
        starts = range(0, STRIDE * frame_count(samples), hop)
        pieces = (waveforms[:, start : start + hop + RECEPTIVE_FIELD - STRIDE] for start in starts)
        return torch.cat([convolve(piece, weight, by_tap) for piece in pieces], dim=1)


def is_cpu_inference(x: Tensor) -> bool:
    """Return whether the front end may use what is fastest on a CPU without gradients: pieces and in-place updates."""
    return not (x.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling())


def convolve(waveforms: Tensor, weight: Tensor, by_tap: list[Tensor]) -> Tensor:
    """Run all layers. `weight` (B, 16, C) is the first, per utterance. `by_tap` has (taps, C, C') for each other."""
    batch, samples = waveforms.shape
    frames = frame_count(samples)
    rows = 64 * (frames + 1)  # one spare frame per utterance keeps the row count of every layer even
    x = first_layer(waveforms, weight, rows, by_tap[0].dtype).flatten(0, 1)
    for matrices in by_tap:
        x = gelu(convolve_stride2(x, matrices))
    # The 3-tap layers consume the spare frame of the last utterance. Pad one row, so all utterances have equal length.
    return F.pad(x, (0, 0, 0, 1)).view(batch, frames + 1, -1)[:, :frames]


def convolve_stride2(x: Tensor, by_tap: Tensor) -> Tensor:
    """Apply a stride-2 convolution with 2 or 3 taps to rows: (R, C), (taps, C, C') -> about (R / 2, C').

    May overwrite x where no gradients are needed.
    """
    channels, taps = x.shape[1], len(by_tap)
    rows = (x.shape[0] - taps) // 2 + 1
    if taps == 3 and rows > 1 and x.dtype == torch.float32 and is_cpu_inference(x):
        return convolve_stride2_winograd(x, by_tap)
    y = x[: 2 * rows].view(rows, 2 * channels) @ by_tap[:2].flatten(0, 1)
    if taps == 3:
        third = x[2 : 2 * rows + 1 : 2]
        if x.is_cuda:
            # The views prevent the compiler from fusing the sum into the product, which would copy y first.
            y = (y.view(rows, 1, -1) + (third @ by_tap[2]).view(rows, 1, -1)).view(rows, -1)
        else:
            y = torch.addmm(y, third, by_tap[2]) if y.requires_grad else y.addmm_(third, by_tap[2].to(y.dtype))
    return y


def convolve_stride2_winograd(x: Tensor, by_tap: Tensor) -> Tensor:
    """Compute `convolve_stride2` with 3 taps in 5 products per two output rows instead of 6. Overwrites x.

    Two output rows read rows a to e: y0 = aF + bM + cL and y1 = cF + dM + eL, with first, middle and last tap. They
    share c(F + L), because aF + cL = (a - c)F + c(F + L) and cF + eL = (e - c)L + c(F + L) (Winograd's algorithm).
    """
    first, middle, last = by_tap
    rows = (x.shape[0] - 3) // 2 + 1
    pairs = rows // 2
    a, _, c, d = (quads := x[: 4 * pairs].view(pairs, 4, -1)).unbind(1)
    shared = c @ (first + last)
    difference = x[4 : 4 * pairs + 1 : 4] - c
    a -= c
    y = x.new_empty(rows, by_tap.shape[2])
    even, odd = y[: 2 * pairs].view(pairs, 2, -1).unbind(1)
    torch.addmm(shared, quads[:, :2].flatten(1), by_tap[:2].flatten(0, 1), out=even)
    torch.addmm(shared, difference, last, out=odd).addmm_(d, middle)
    if rows % 2:
        y[-1] = x[2 * rows - 2 : 2 * rows + 1].flatten() @ by_tap.flatten(0, 1)
    return y


def normalized_weight(layer: ConvLayer, mean: Tensor, covariance: Tensor, normalizes_waveforms: bool = False) -> Tensor:
    """Fold convolution 0 and its GroupNorm (one group per channel) into one weight per utterance: (B, 16, C).

    The convolution is linear in windows of 10 samples. The mean and variance of each channel therefore follow from
    the mean and the 10 x 10 covariance of the windows. The norm scales the taps (rows 0 to 9) and adds a shift
    (row 10). Rows 11 to 15 are zero.

    The norm removes the mean and the scale of the waveform, except for its epsilon. With `normalizes_waveforms`,
    epsilon is therefore scaled by the variance of the samples, which equals scaling the waveform to unit variance.
    """
    norm, taps = layer.layer_norm, layer.conv.weight[:, 0]  # (C, 10)
    with torch.autocast(mean.device.type, enabled=False):
        taps = taps.float()
        variance = ((taps @ covariance) * taps).sum(2)  # (B, C)
        eps: Tensor | float = norm.eps
        if normalizes_waveforms:
            samples = covariance.diagonal(dim1=1, dim2=2).mean(1, keepdim=True) + mean.var(
                1, unbiased=False, keepdim=True
            )
            eps = norm.eps * (samples + VARIANCE_FLOOR)  # (B, 1)
        scale = norm.weight * torch.rsqrt(variance.clamp(min=0) + eps)
        shift = norm.bias - scale * (mean @ taps.t())
        return F.pad(torch.cat([taps.t() * scale.unsqueeze(1), shift.unsqueeze(1)], dim=1), (0, 0, 0, 5))


def window_moments(waveforms: Tensor, lengths: Tensor | None) -> Moments:
    """Return the moments of the input windows of convolution 0, without windows beyond an utterance's length."""
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
    # In chunks: one long product with a 10 x 10 result would leave most of a GPU idle.
    centred = F.pad(centred, (0, 0, 0, -centred.shape[1] % 512)).view(batch, -1, 512, KERNELS[0])
    with torch.autocast(waveforms.device.type, enabled=False):
        return Moments(mean, (centred.transpose(2, 3) @ centred).sum(1) / count)


def first_layer(waveforms: Tensor, weight: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Apply the utterance's weight and GELU to each window of ten samples: (B, N), (B, 16, C) -> (B, rows, C).

    Compute in fp32 and return `dtype`: the type of the next layer's weights, or of autocast on a GPU.
    """
    kernel, stride, device = KERNELS[0], STRIDES[0], waveforms.device.type
    needed = stride * (rows - 1) + kernel
    padded = F.pad(waveforms.float(), (0, needed - waveforms.shape[1]))
    channels = weight.shape[2]
    tiles = channels % 128 == 0 or channels in (16, 32, 64)
    if (
        tiles and not waveforms.requires_grad and can_use_kernels(waveforms)
    ):  # the kernel has no gradient for the samples
        from sjepa.model import kernels

        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype
        return kernels.first_layer(padded, weight, rows, dtype)
    windows = padded.unfold(1, kernel, stride)
    y = gelu(torch.baddbmm(weight[:, kernel : kernel + 1], windows, weight[:, :kernel]))
    return y if dtype == torch.float32 else y.to(dtype)
