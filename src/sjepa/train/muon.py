"""Muon: momentum whose matrices are made orthogonal before each update (Jordan and others, 2024)."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

ITERATIONS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # Jordan's polynomial. After five iterations, singular values lie near 1.
ADAM_RMS = 0.2  # usual root mean square of AdamW's updates, so that both can use the same learning rate


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, for weight matrices. Updates have the size of AdamW's (Liu and others, 2025).

    `torch.optim.Muon` computes the same. This class also works in a captured CUDA graph, and updates all matrices of
    one shape together. Like the fused AdamW, `step` divides gradients by `grad_scale`, and does nothing if `found_inf`
    is 1.
    """

    grad_scale: Tensor
    found_inf: Tensor

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float | Tensor, momentum: float, weight_decay: float):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.update: Callable[..., None] = update
        self.shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"momentum": torch.zeros_like(p, requires_grad=False)}
            self.shapes[p.shape].append(p)
        self.always = torch.ones((), device=self.param_groups[0]["params"][0].device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient.

        The others go through the same computation and are skipped in it. So LayerDrop does not change its shape, and
        it is compiled once.
        """
        group = self.param_groups[0]
        for matrices in self.shapes.values():
            # Stacked here, because compiled code depends on which tensors of a list are the same one.
            skips = [self.always if p.grad is None else self.found_inf for p in matrices]
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


def update(
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
    """Bring all singular values of each matrix of a batch close to 1, by Newton-Schulz iterations.

    Computes in bf16 on a GPU, which is precise enough: the iterations do not converge to 1 but end between 0.7 and 1.2.
    """
    if x.shape[1] > x.shape[2]:
        return orthogonalise(x.mT).mT
    y = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.is_cuda:
        y = y.bfloat16()
    for _ in range(ITERATIONS):
        gram = y @ (y.mT if y.is_cuda else y.mT.contiguous())  # ARM takes three times as long for a transposed one
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), y, beta=A)
    return y.float()
