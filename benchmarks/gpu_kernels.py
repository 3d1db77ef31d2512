"""Compare the GPU kernels with plain PyTorch: values, gradients, dropout rate. Needs a GPU.

python benchmarks/gpu_kernels.py
"""

import torch
import torch.nn.functional as F

from sjepa.model import kernels


def relative_difference(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return float((ours.double() - reference.double()).detach().norm() / reference.detach().double().norm())


def check(name: str, value: float, limit: float) -> None:
    print(f"{name:<46} {value:.2e}  (limit {limit:.0e})", flush=True)
    assert value <= limit, name


def check_first_layer(dtype: torch.dtype, limits: tuple[float, float], rows: int = 640, channels: int = 512) -> None:
    x = torch.randn(3, 5 * (rows - 1) + 10, device="cuda")
    weight = torch.randn(3, 16, channels, device="cuda") * 0.3
    weight[:, 11:] = 0
    weight.requires_grad_()
    ours = kernels.first_layer(x, weight, rows, dtype)
    taps, shift = weight[:, :10].double(), weight[:, 10:11].double()
    reference = F.gelu(torch.baddbmm(shift, x.double().unfold(1, 10, 5), taps))
    check(f"first layer, {dtype}", relative_difference(ours, reference), limits[0])
    upstream = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad(ours, weight, upstream)
    (expected,) = torch.autograd.grad(reference, weight, upstream.double())
    check(f"first layer's gradient, {dtype}", relative_difference(gradient[:, :11], expected[:, :11]), limits[1])


def check_gelu_dropout(p: float = 0.1) -> None:
    x = torch.randn(1000, 3072, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ours = kernels.gelu_dropout(x, torch.tensor([123], device="cuda"), p)
    kept = ((ours != 0) | (x == 0)).float()
    check("difference of the dropout rate from p", abs(1 - float(kept.mean()) - p), 1e-3)
    neighbours = torch.corrcoef(torch.stack([kept[:, :-1].flatten(), kept[:, 1:].flatten()]))[0, 1]
    check("correlation of neighbouring masks", abs(float(neighbours)), 5e-3)
    reference = F.gelu(x.double()) / (1 - p) * kept
    check("GELU with dropout", relative_difference(ours, reference), 4e-3)
    upstream = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad(ours, x, upstream)
    (expected,) = torch.autograd.grad(reference, x, upstream.double())
    check("GELU with dropout, gradient", relative_difference(gradient, expected), 4e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    check_first_layer(torch.float32, (1e-6, 1e-6))
    check_first_layer(torch.bfloat16, (4e-3, 2e-3))
    check_gelu_dropout()
    print("all kernels agree with plain PyTorch")
