"""Discrete units: the most likely cluster of the head at each frame, or k-means on a layer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from sjepa.errors import UserError
from sjepa.evaluate.upstream import Upstream
from sjepa.runs.heads import RunHeads
from sjepa.targets.kmeans import kmeans, nearest

KMEANS_PASSES = 20
BATCH = 65_536  # frames per forward pass of the head
HeadPath = Literal["encoder", "predictor"]


def kmeans_units(features: Sequence[np.ndarray], clusters: int, seed: int, device: torch.device) -> np.ndarray:
    """Fit k-means on all frames and return the nearest centre of each frame."""
    frames = torch.from_numpy(np.concatenate(features)).float().to(device)
    if not 1 <= clusters <= len(frames):
        raise UserError(f"--clusters {clusters}: must be between 1 and the {len(frames):,} frames")
    centres = kmeans(frames, clusters, KMEANS_PASSES, torch.Generator().manual_seed(seed))
    offset = frames.mean(0)  # avoids cancellation in norms
    return nearest(frames - offset, centres - offset).cpu().numpy()


class HeadUnits(nn.Module):
    """The cluster head of a run, on the output of the encoder or the predictor, without masking."""

    def __init__(self, run: Path, upstream: Upstream, path: HeadPath):
        super().__init__()
        heads = RunHeads(run, upstream.network)
        self.head = heads.cluster_head()
        self.predictor = heads.predictor() if path == "predictor" else None
        self.to(upstream.device)
        self.device = upstream.device

    @torch.inference_mode()
    def forward(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Return the units of all frames of some utterances, each (T, D)."""
        pieces = [torch.from_numpy(frames).float().to(self.device) for frames in features]
        if self.predictor is not None:
            # The predictor has a fixed number of positions. Split longer utterances.
            pieces = [part for piece in pieces for part in piece.split(self.predictor.positions.shape[0])]
            masks = (torch.zeros(1, len(piece), dtype=torch.bool, device=self.device) for piece in pieces)
            pieces = [self.predictor(piece[None], mask)[0] for piece, mask in zip(pieces, masks, strict=True)]
        return torch.cat([self.head(part).argmax(-1) for part in torch.cat(pieces).split(BATCH)]).cpu().numpy()
