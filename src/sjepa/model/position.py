"""Relative position encoding by a wide grouped convolution, computed as matrix products."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from sjepa.model.activation import gelu

HALVES = (torch.float16, torch.bfloat16)


class ConvPosition(nn.Module):
    """Relative position encoding by a wide grouped convolution with weight norm over each tap."""

    def __init__(self, hidden_size: int, kernel: int, groups: int):
        super().__init__()
        conv = nn.Conv1d(hidden_size, hidden_size, kernel, padding=kernel // 2, groups=groups)
        nn.init.normal_(conv.weight, std=math.sqrt(4 / (kernel * hidden_size)))
        assert conv.bias is not None
        nn.init.zeros_(conv.bias)
        self.conv = weight_norm(conv, dim=2)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        weights, bias = self.conv.parametrizations.weight, self.conv.bias
        assert bias is not None
        gain, direction = weights.original0, weights.original1
        if bias.dtype in HALVES:  # squares of a tap underflow
            gain, direction = gain.float(), direction.float()
        # torch's weight norm over the last dimension is slow, and its vector norm is slow on a CPU.
        weight = direction * (gain / direction.square().sum((0, 1), keepdim=True).sqrt())
        if x.is_cuda:
            return gelu(convolve_by_blocks(x, weight, self.conv.groups) + bias)
        if bias.dtype in HALVES:  # and so do the products of short transforms
            return gelu(convolve_by_fourier(x.float(), weight, self.conv.groups) + bias).to(x.dtype)
        return gelu(convolve_by_fourier(x, weight, self.conv.groups) + bias)


def convolve_by_blocks(x: Tensor, weight: Tensor, groups: int, block: int = 16) -> Tensor:
    """Compute a same-length grouped convolution along time as one batched product, for GPUs.

    x is (B, T, D), weight (D, D / groups, kernel) with an even kernel. A block of 16 output frames reads
    16 + kernel - 1 input frames. One matrix per group holds the kernel at all 16 offsets.
    """
    batch, frames, hidden = x.shape
    width, kernel = weight.shape[1], weight.shape[2]
    blocks, reach = -(-frames // block), -(-(block + kernel - 1) // block)  # each block reads `reach` blocks
    x = x.to(torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype)
    padded = F.pad(x, (0, 0, kernel // 2, (blocks + reach) * block - kernel // 2 - frames))
    pieces = padded.view(batch, blocks + reach, block, groups, width)
    windows = torch.stack([pieces[:, m : m + blocks] for m in range(reach)], dim=2)  # (B, blocks, reach, 16, G, width)
    windows = windows.permute(4, 0, 1, 2, 3, 5).reshape(groups, batch * blocks, reach * block * width)
    # Viewing the first 16 * span elements of a (16, span + 1) table as (16, span) shifts each row by one more place.
    span = reach * block
    table = F.pad(weight.to(x.dtype), (0, span + 1 - kernel)).unsqueeze(2).expand(-1, -1, block, -1)
    table = table.reshape(hidden, width, block * (span + 1))[..., : block * span].view(
        groups, width, width, block, span
    )
    table = table.permute(0, 4, 2, 3, 1).reshape(groups, span * width, block * width)
    y = torch.bmm(windows, table).view(groups, batch, blocks * block, width)
    return y.permute(1, 2, 0, 3).reshape(batch, blocks * block, hidden)[:, :frames]


class Products(torch.autograd.Function):
    """Batched products (N, I, J) x (N, J, K) whose gradients avoid a transposed right operand.

    OpenBLAS, which torch uses on ARM, computes small products with a transposed right operand ten times slower.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.bmm(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        gradient = gradient.contiguous()
        return torch.bmm(gradient, b.mT.contiguous()), torch.bmm(a.mT, gradient)


def convolve_by_fourier(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Compute a same-length grouped convolution along time by overlap-save Fourier transforms, with less arithmetic.

    x is (B, T, D), weight (D, D / groups, kernel) with an even kernel. The transforms are short, so they are matrix
    products. These put frequencies first, which is the layout for multiplying filters and spectra.
    """
    batch, frames, hidden = x.shape
    width, kernel = weight.shape[1], weight.shape[2]
    size = 2 * (3 * kernel // 4)  # transform length; each block yields `hop` output frames
    hop = size - kernel + 1
    blocks, before, frequencies = -(-frames // hop), kernel // 2, size // 2 + 1
    time, frequency = (torch.arange(n, dtype=torch.float64, device=x.device) for n in (size, frequencies))
    angles = (2 * math.pi / size) * frequency[:, None] * time
    transform = torch.cat([angles.cos(), -angles.sin()])  # real parts, then imaginary: (2 frequencies, size)
    # All frequencies except the first and the last also stand for their mirror images.
    inverse = transform * torch.where(frequency % (size // 2) == 0, 1.0, 2.0).repeat(2)[:, None] / size
    transform, inverse = transform.to(x.dtype), inverse[:, :hop].t().to(x.dtype)

    padded = F.pad(x, (0, 0, before, blocks * hop + kernel - 1 - before - frames))
    pieces = padded.unfold(1, size, hop).permute(3, 2, 0, 1).reshape(size, hidden * batch * blocks)
    real, imaginary = (transform @ pieces).view(2, frequencies * groups, width, batch * blocks)
    spectra = torch.cat([real, imaginary], dim=2)
    filters = transform[:, :kernel] @ weight.reshape(hidden * width, kernel).t()
    multiply = torch.bmm if torch.compiler.is_compiling() else Products.apply
    by_real, by_imaginary = (multiply(part, spectra) for part in filters.view(2, -1, width, width))
    # Convolution layers compute a correlation, so multiply by the conjugate of the filter.
    (rr, ri), (ir, ii) = by_real.chunk(2, dim=2), by_imaginary.chunk(2, dim=2)
    y = inverse @ torch.stack([rr + ii, ri - ir]).view(2 * frequencies, hidden * batch * blocks)
    y = y.view(hop, hidden, batch, blocks).permute(2, 3, 0, 1)
    return y.reshape(batch, blocks * hop, hidden)[:, :frames]
