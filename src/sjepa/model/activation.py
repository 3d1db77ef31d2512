"""GELU that costs little: inside a compiled GPU kernel, in a CPU's memory, and in its gradient on ARM."""

import math
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Abramowitz and Stegun 7.1.26 for erf(u / sqrt 2), each coefficient halved: within 7.5e-8 of Phi(u) everywhere, below
# what bf16 or even fp32 keeps of GELU. It shares its exponential with the slope; a library's erf takes three times as
# many instructions.
RECIPROCAL = 0.2316418881  # 0.3275911 / sqrt 2
COEFFICIENTS = (0.127414796, -0.142248368, 0.7107068705, -0.7265760135, 0.5307027145)
BELL = 0.3989422804014327  # 1 / sqrt(2 pi)


def share_and_bell(u: Tensor) -> tuple[Tensor, Tensor]:
    """Phi(u), the share of GELU that lets u through, and exp(-u^2 / 2)."""
    bell = torch.exp(-0.5 * u * u)
    t = 1.0 / (1.0 + RECIPROCAL * u.abs())
    tail = torch.zeros_like(t)
    for coefficient in reversed(COEFFICIENTS):
        tail = t * (coefficient + tail)
    tail = tail * bell
    return torch.where(u < 0, tail, 1.0 - tail), bell


class ShortGelu(torch.autograd.Function):
    """GELU and its slope by the short formula; the compiler fuses it with what is around."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        u = x.float()
        y = u * share_and_bell(u)[0]
        # A conversion to the same type returns y itself, and torch 2.11 then compiles a gradient of zero.
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        u = x.float()
        share, bell = share_and_bell(u)
        return (gradient.float() * (share + u * bell * BELL)).to(x.dtype)


# torch's gradient of GELU takes twelve times as long as GELU itself on ARM, where it is not vectorised.
OWN_GRADIENT = platform.machine().lower() in ("aarch64", "arm64")
BLOCK = 65_536  # elements: all operands of a block fit a core's cache, and two threads still share one


class BlockGelu(torch.autograd.Function):
    """GELU whose gradient is computed in blocks that stay in a CPU's cache, by operations that are vectorised."""

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
    """GELU that keeps its input, by torch except for gradients on ARM."""

    def forward(self, x: Tensor) -> Tensor:
        if OWN_GRADIENT and x.device.type == "cpu" and x.requires_grad and not torch.compiler.is_compiling():
            return BlockGelu.apply(x)
        return F.gelu(x)


plain_gelu = Gelu()


def gelu(x: Tensor) -> Tensor:
    """GELU of a tensor that is not needed afterwards."""
    if x.is_cuda and torch.compiler.is_compiling():
        return ShortGelu.apply(x)
    if x.is_cuda or x.requires_grad or torch.compiler.is_compiling():
        return plain_gelu(x)
    # In place, because on a CPU fresh memory costs more than GELU.
    activated: Tensor = torch.ops.aten.gelu_(x)
    return activated
