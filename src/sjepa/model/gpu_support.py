"""What the GPU supports, tested once. A missing feature is reported in one line."""

from functools import cache

import torch
from torch import Tensor

from sjepa.progress import say

_kernels: bool | None = None  # whether the GPU kernels work; None before the test


def can_use_kernels(x: Tensor) -> bool:
    """Return whether to use our GPU kernels for this tensor, instead of plain PyTorch."""
    return x.is_cuda and kernels_work()


def kernels_work() -> bool:
    """Return whether Triton compiles for this GPU. If not, networks are not compiled either.

    The compiler reads the answer while it traces a network, so call this before compiling.
    """
    global _kernels
    if _kernels is None and not torch.compiler.is_compiling():
        try:
            run_kernels()
            _kernels = True
        except Exception as error:  # a missing compiler, driver or library, or a GPU that is too old
            _kernels = False
            words = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"GPU kernels do not compile here ({words}): using plain PyTorch, which is slower", aside=True)
    return _kernels is not False


@torch.inference_mode(False)
@torch.enable_grad()
def run_kernels() -> None:
    """Run each kernel once, forward and backward, on small tensors. The caller may have gradients turned off."""
    from sjepa.model import kernels

    for dtype in (torch.float32, *([torch.bfloat16] if has_bf16() else [])):
        weight = torch.zeros(1, 16, 16, device="cuda", requires_grad=True)
        x = torch.zeros(64, device="cuda", dtype=dtype, requires_grad=True)
        seed = torch.zeros(1, dtype=torch.int64, device="cuda")
        first = kernels.first_layer(torch.zeros(1, 5 * 63 + 10, device="cuda"), weight, 64, dtype)
        (first.sum() + kernels.gelu_dropout(x, seed, 0.1).sum()).backward()
    torch.cuda.synchronize()


@cache
def has_bf16() -> bool:
    """Return whether the GPU supports bf16. If not, training uses fp32."""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return True
    say("This GPU has no bf16: training uses fp32, which is slower and needs more memory", aside=True)
    return False
