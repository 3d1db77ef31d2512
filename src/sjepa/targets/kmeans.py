"""Mini-batch k-means (Sculley, 2010) on a sample of frames."""

import torch
from torch import Tensor

from sjepa.errors import UserError

BATCH = 16_384


def nearest(frames: Tensor, centres: Tensor) -> Tensor:
    """Index of the closest centre for each frame, by one matrix product a chunk."""
    half_norms = 0.5 * centres.square().sum(1)
    return torch.cat([torch.argmax(chunk @ centres.t() - half_norms, dim=1) for chunk in frames.split(BATCH)])


def kmeans(frames: Tensor, components: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Centres (K, D): random frames at first, passes in mini-batches, empty clusters re-seeded each pass."""
    count = len(frames)
    if components > count:
        raise UserError(f"{components} clusters need at least as many frames; there are {count}. Lower K or add audio")
    frames = frames.float()
    offset = frames.mean(0)
    frames = frames - offset  # so that norms do not cancel
    order = torch.randperm(count, generator=generator).to(frames.device)
    centres = frames[order[:components]].clone()
    seen = torch.zeros(components, device=frames.device)
    for _ in range(iterations):
        order = torch.randperm(count, generator=generator).to(frames.device)
        held = torch.zeros(components, device=frames.device)
        for batch in order.split(BATCH):
            chosen = frames[batch]
            label = nearest(chosen, centres)
            size = torch.zeros(components, device=frames.device).index_add_(
                0, label, torch.ones_like(label, dtype=torch.float)
            )
            total = torch.zeros_like(centres).index_add_(0, label, chosen)
            seen += size
            held += size
            # Each centre moves to the mean of everything it was ever given: learning rate 1 / seen.
            centres += (total - size[:, None] * centres) / seen.clamp(min=1)[:, None]
        empty = torch.nonzero(held == 0).flatten()
        if len(empty):
            centres[empty] = frames[order[: len(empty)]]
            seen[empty] = 0
    return centres + offset
