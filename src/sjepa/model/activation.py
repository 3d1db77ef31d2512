"""GELU that costs little: inside a compiled GPU kernel, and in a CPU's memory."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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


def gelu(x: Tensor) -> Tensor:
    """GELU of a tensor that is not needed afterwards."""
    if x.is_cuda and torch.compiler.is_compiling():
        return ShortGelu.apply(x)
    if x.is_cuda or x.requires_grad or torch.compiler.is_compiling():
        return F.gelu(x)
    # In place, because on a CPU fresh memory costs more than GELU.
    activated: Tensor = torch.ops.aten.gelu_(x)
    return activated
