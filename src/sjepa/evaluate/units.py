"""Discrete units: the choice of the cluster head or of the mixture at each frame, or k-means on a layer."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.upstream import Upstream
from sjepa.model.encoder import Encoder
from sjepa.runs.heads import RunHeads
from sjepa.targets.clusters import Clusters
from sjepa.targets.kmeans import kmeans, nearest

KMEANS_PASSES = 20
HeadPath = Literal["encoder", "predictor"]


def kmeans_units(features: Sequence[np.ndarray], clusters: int, seed: int, device: torch.device) -> np.ndarray:
    """Of every frame the nearest of `clusters` centres, which are fitted on all frames given."""
    frames = torch.from_numpy(np.concatenate(features)).float().to(device)
    if not 1 <= clusters <= len(frames):
        raise UserError(f"--clusters {clusters}: between 1 and the {len(frames):,} frames are possible")
    centres = kmeans(frames, clusters, KMEANS_PASSES, torch.Generator().manual_seed(seed))
    offset = frames.mean(0)  # so that norms do not cancel
    return nearest(frames - offset, centres - offset).cpu().numpy()


def clusters_of(upstream: Upstream) -> Clusters:
    """The mixture and the cluster head that belong to an encoder of ours."""
    if not isinstance(upstream.network, Encoder):
        raise UserError(
            f"{upstream.name} is not an encoder of sjepa, and only those have a cluster head and a mixture: "
            "take --units kmeans"
        )
    return upstream.network.clusters


class HeadUnits(nn.Module):
    """The cluster head of an encoder, on the encoder's output or on the predictor's, with nothing masked."""

    def __init__(self, run: Path, upstream: Upstream, path: HeadPath):
        super().__init__()
        self.clusters = clusters_of(upstream)
        self.predictor = RunHeads(run, upstream.network).predictor() if path == "predictor" else None
        self.to(upstream.device)
        self.device = upstream.device

    @torch.inference_mode()
    def forward(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Units of all frames of the utterances, each (T, D)."""
        pieces = [torch.from_numpy(frames).float().to(self.device) for frames in features]
        if self.predictor is not None:
            # The predictor knows so many positions; longer utterances are taken in pieces.
            pieces = [part for piece in pieces for part in piece.split(self.predictor.positions.shape[0])]
            nothing = (torch.zeros(1, len(piece), dtype=torch.bool, device=self.device) for piece in pieces)
            pieces = [self.predictor(piece[None], mask)[0] for piece, mask in zip(pieces, nothing, strict=True)]
        return self.clusters.head_posteriors(torch.cat(pieces)).argmax(-1).cpu().numpy()


@torch.inference_mode()
def mixture_units(
    clusters: Clusters, utterances: Iterable[Utterance], features: Sequence[np.ndarray], device: torch.device
) -> np.ndarray:
    """The mixture's most likely component at each frame of utterances, given their hidden states (T, D)."""
    found = []
    for utterance, states in zip(utterances, features, strict=True):
        samples = torch.from_numpy(utterance.read()).to(device) if clusters.state is None else None
        found.append(clusters.mixture_units(clusters.space(samples, torch.from_numpy(states).to(device))))
    return torch.cat(found).cpu().numpy()
