"""Mini-batch k-means (Sculley, 2010) on a sample of frames."""

import torch
from torch import Tensor

from sjepa.errors import UserError

BATCH = 16_384


def find_nearest(frames: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the closest centre for each frame, with one matrix product per chunk."""
    half_norms = 0.5 * centres.square().sum(1)
    return torch.cat([torch.argmax(chunk @ centres.t() - half_norms, dim=1) for chunk in frames.split(BATCH)])


def assign_clusters(frames: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the closest centre for each frame. Both are centred first, to avoid cancellation in norms."""
    offset = frames.mean(0)
    return find_nearest(frames - offset, centres - offset)


def kmeans(frames: Tensor, components: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return centres (K, D). They start at random frames. Each pass uses mini-batches and re-seeds empty clusters."""
    count = len(frames)
    if components > count:
        raise UserError(f"{components} clusters need at least as many frames; there are {count}. Lower K or add audio")
    frames = frames.float()
    offset = frames.mean(0)
    frames = frames - offset  # avoids cancellation in norms
    order = torch.randperm(count, generator=generator).to(frames.device)
    centres = frames[order[:components]].clone()
    seen = torch.zeros(components, device=frames.device)
    for _ in range(iterations):
        order = torch.randperm(count, generator=generator).to(frames.device)
        held = torch.zeros(components, device=frames.device)
        for batch in order.split(BATCH):
            chosen = frames[batch]
            label = find_nearest(chosen, centres)
            size = torch.zeros(components, device=frames.device).index_add_(
                0, label, torch.ones_like(label, dtype=torch.float)
            )
            total = torch.zeros_like(centres).index_add_(0, label, chosen)
            seen += size
            held += size
            # Each centre is the mean of all frames assigned to it so far: learning rate 1 / seen.
            centres += (total - size[:, None] * centres) / seen.clamp(min=1)[:, None]
        empty = torch.nonzero(held == 0).flatten()
        if len(empty):
            centres[empty] = frames[order[: len(empty)]]
            seen[empty] = 0
    return centres + offset
