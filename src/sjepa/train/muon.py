"""Muon: momentum updates of weight matrices, each orthogonalised before it is applied (Jordan and others, 2024)."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

ITERATIONS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # Jordan's polynomial. After five iterations, singular values lie near 1.
ADAM_RMS = 0.2  # typical root mean square of AdamW's updates. With it, Muon and AdamW share a learning rate.


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, for weight matrices. Updates have the size of AdamW's (Liu and others, 2025).

    `torch.optim.Muon` computes the same update. This class also works in a captured CUDA graph, and updates all
    matrices of one shape together. As in the fused AdamW, `step` divides gradients by `grad_scale`, and changes nothing
    if `found_inf` is 1.
    """

    grad_scale: Tensor
    found_inf: Tensor

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float | Tensor, momentum: float, weight_decay: float):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.update: Callable[..., None] = update_matrices
        self.shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"momentum": torch.zeros_like(p, requires_grad=False)}
            self.shapes[p.shape].append(p)
        self.always_skip = torch.ones((), device=self.param_groups[0]["params"][0].device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient.

        Matrices without one (LayerDrop) take part with a zero gradient, and are marked to be skipped. The computation
        then has the same shape in every step, and is compiled once.
        """
        group = self.param_groups[0]
        for matrices in self.shapes.values():
            # Stack before the compiled function: it would be recompiled for each pattern of equal tensors in a list.
            skips = [self.always_skip if p.grad is None else self.found_inf for p in matrices]
            self.update(
                matrices,
                [torch.zeros_like(p) if p.grad is None else p.grad for p in matrices],
                [self.state[p]["momentum"] for p in matrices],
                torch.stack(skips) > 0,
                group["lr"],
                group["momentum"],
                group["weight_decay"],
                self.grad_scale,
            )


def update_matrices(
    matrices: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    skips: Tensor,
    lr: float | Tensor,
    beta: float,
    weight_decay: float,
    divisor: Tensor,
) -> None:
    """Update matrices of one shape and their momenta in place. A true entry of `skips` leaves a matrix as it is."""
    skip = skips[:, None, None]
    gradient = torch.stack(gradients) / divisor
    past = torch.stack(momenta)
    momentum = torch.where(skip, past, past.lerp(gradient, 1 - beta))
    ahead = torch.where(skip, 0.0, gradient.lerp(momentum, beta))
    rows, columns = ahead.shape[1:]
    directions = orthogonalise(ahead) * (ADAM_RMS * max(rows, columns) ** 0.5)
    rates = torch.where(skip, 0.0, lr)
    for matrix, direction, rate, own, new in zip(matrices, directions, rates, momenta, momentum, strict=True):
        matrix.mul_(1 - rate * weight_decay).sub_(rate * direction)
        own.copy_(new)


def orthogonalise(x: Tensor) -> Tensor:
    """Bring all singular values of each matrix in a batch (N, R, C) close to 1, by Newton-Schulz iterations.

    On a GPU it computes in bf16. That is precise enough, because the iterations do not converge to 1: singular values
    end between 0.7 and 1.2.
    """
    if x.shape[1] > x.shape[2]:
        return orthogonalise(x.mT).mT
    y = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.is_cuda:
        y = y.bfloat16()
    for _ in range(ITERATIONS):
        gram = y @ (y.mT if y.is_cuda else y.mT.contiguous())  # a transposed right operand is three times slower on ARM
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), y, beta=A)
    return y.float()
