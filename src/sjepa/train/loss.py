"""The objective: KL divergence from posteriors to predictions at every frame, and the sums to log."""

import math

import torch
from torch import Tensor

# Sums over frames that a step adds to the meter, in order.
SUMS = (
    "kl_masked",
    "kl_visible",
    "correct_masked",
    "correct_visible",
    "frames_masked",
    "frames_visible",
    "target_entropy",
    "predictor_entropy",
)


def kl_per_frame(q: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return KL(q_t || p_t) of every frame and log p, in fp32: two (B, T, K) -> (B, T), (B, T, K)."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    return (torch.xlogy(q, q) - q * log_p).sum(-1), log_p


def masked_kl(q: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of KL over masked frames, with gradients."""
    return (kl_per_frame(q, logits)[0] * mask).sum()


def frame_sums(q: Tensor, logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of KL over masked and visible frames, both with gradients, and the sums to log."""
    kl, log_p = kl_per_frame(q, logits)
    masked = mask.float()
    visible = 1.0 - masked
    kl_masked, kl_visible = (kl * masked).sum(), (kl * visible).sum()
    with torch.no_grad():
        correct = (q.argmax(-1) == log_p.argmax(-1)).float()
        bits = 1.0 / math.log(2.0)
        sums = torch.stack(
            [
                kl_masked.detach(),
                kl_visible.detach(),
                (correct * masked).sum(),
                (correct * visible).sum(),
                masked.sum(),
                visible.sum(),
                -torch.xlogy(q, q).sum() * bits,
                -((log_p.exp() * log_p).sum(-1) * masked).sum() * bits,
            ]
        )
    return kl_masked, kl_visible, sums
