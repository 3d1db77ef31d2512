"""Fast GELU: a short formula for compiled GPU kernels, in-place on a CPU, and a faster gradient on ARM."""

import math
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Abramowitz and Stegun 7.1.26 for erf(u / sqrt 2), with each coefficient halved. The error of Phi(u) is at most 7.5e-8,
# below the precision of GELU in fp32. The slope uses the same exponential. A library's erf takes three times as many
# instructions.
RECIPROCAL = 0.2316418881  # 0.3275911 / sqrt 2
COEFFICIENTS = (0.127414796, -0.142248368, 0.7107068705, -0.7265760135, 0.5307027145)
BELL = 0.3989422804014327  # 1 / sqrt(2 pi)


def cdf_and_exp(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return Phi(u), the normal distribution function, and exp(-u^2 / 2)."""
    bell = torch.exp(-0.5 * u * u)
    t = 1.0 / (1.0 + RECIPROCAL * u.abs())
    tail = torch.zeros_like(t)
    for coefficient in reversed(COEFFICIENTS):
        tail = t * (coefficient + tail)
    tail = tail * bell
    return torch.where(u < 0, tail, 1.0 - tail), bell


class ShortGelu(torch.autograd.Function):
    """GELU and its slope by the short formula. The compiler fuses it with neighbouring operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        u = x.float()
        y = u * cdf_and_exp(u)[0]
        # Converting to the same type returns y itself, for which torch 2.11 compiles a gradient of zero.
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        u = x.float()
        cdf, bell = cdf_and_exp(u)
        return (gradient.float() * (cdf + u * bell * BELL)).to(x.dtype)


# On ARM, torch's gradient of GELU is not vectorised and takes twelve times as long as GELU itself.
OWN_GRADIENT = platform.machine().lower() in ("aarch64", "arm64")
BLOCK = 65_536  # elements: all operands of a block fit in a core's cache, and it still splits between two threads


class BlockGelu(torch.autograd.Function):
    """GELU whose gradient uses vectorised operations on blocks that fit in a CPU's cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        flat = (x.contiguous().view(-1), gradient.contiguous().view(-1), result.view(-1))
        scratch = torch.empty(min(BLOCK, x.numel()), dtype=x.dtype)
        for u, g, slope in zip(*(part.split(BLOCK) for part in flat), strict=True):
            bell = torch.mul(u, u, out=scratch[: len(u)]).mul_(-0.5).exp_()
            # Twice the slope: 1 + erf(u / sqrt 2) + 2 u exp(-u^2 / 2) / sqrt(2 pi)
            torch.mul(u, math.sqrt(0.5), out=slope).erf_().add_(1.0).add_(bell.mul_(u), alpha=2 * BELL)
            slope.mul_(g).mul_(0.5)
        return result


class Gelu(nn.Module):
    """GELU that leaves its input unchanged. It uses torch, except for gradients on ARM."""

    def forward(self, x: Tensor) -> Tensor:
        if OWN_GRADIENT and x.device.type == "cpu" and x.requires_grad and not torch.compiler.is_compiling():
            return BlockGelu.apply(x)
        return F.gelu(x)


plain_gelu = Gelu()


def gelu(x: Tensor) -> Tensor:
    """Apply GELU to a tensor that is not used afterwards. It may be overwritten."""
    if x.is_cuda and torch.compiler.is_compiling():
        return ShortGelu.apply(x)
    if x.is_cuda or x.requires_grad or torch.compiler.is_compiling():
        return plain_gelu(x)
    # In place: on a CPU, allocating memory costs more than GELU.
    activated: Tensor = torch.ops.aten.gelu_(x)
    return activated
