"""Discrete units against phones: the cluster head's choice at each frame, or k-means on a layer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from sjepa.evaluate.upstream import Upstream
from sjepa.targets.kmeans import kmeans, nearest
from sjepa.train.finished import Finished

KMEANS_PASSES = 20
HeadPath = Literal["encoder", "predictor"]


def agreement(units: np.ndarray, phones: np.ndarray) -> dict[str, float]:
    """How units and phones of the same frames share information, as HuBERT's authors define it.

    Phone purity is the accuracy of naming each unit's most frequent phone; cluster purity the other way round. PNMI is
    the share of the phones' entropy that the unit takes away. Perplexity is 2 to the entropy of the units.
    """
    _, unit = np.unique(units, return_inverse=True)
    _, phone = np.unique(phones, return_inverse=True)
    joint = np.zeros((unit.max() + 1, phone.max() + 1))
    np.add.at(joint, (unit, phone), 1 / len(unit))
    phone_entropy = entropy(joint.sum(0))
    information = entropy(joint.sum(1)) + phone_entropy - entropy(joint.ravel())
    return {
        "phone_purity": float(joint.max(1).sum()),
        "cluster_purity": float(joint.max(0).sum()),
        "pnmi": float(information / phone_entropy) if phone_entropy else 0.0,
        "perplexity": float(2 ** entropy(joint.sum(1))),
        "units_used": float(len(joint)),
    }


def entropy(distribution: np.ndarray) -> float:
    """In bits."""
    positive = distribution[distribution > 0]
    return float(-(positive * np.log2(positive)).sum())


def kmeans_units(features: Sequence[np.ndarray], clusters: int, seed: int) -> list[np.ndarray]:
    """Nearest of `clusters` centres fitted on all frames given."""
    frames = torch.from_numpy(np.concatenate(features)).float()
    centres = kmeans(frames, clusters, KMEANS_PASSES, torch.Generator().manual_seed(seed))
    offset = frames.mean(0)  # so that norms do not cancel
    return [nearest(torch.from_numpy(f).float() - offset, centres - offset).numpy() for f in features]


class HeadUnits(nn.Module):
    """The cluster head of a finished run, on the encoder's output or on the predictor's, with nothing masked."""

    def __init__(self, run: Path, upstream: Upstream, path: HeadPath):
        super().__init__()
        finished = Finished(run, upstream.network)
        self.head = finished.head()
        self.predictor = finished.predictor() if path == "predictor" else None

    @torch.inference_mode()
    def forward(self, frames: np.ndarray) -> np.ndarray:  # (T, D) -> (T,)
        z = torch.from_numpy(frames).float()
        if self.predictor is not None:
            # The predictor knows so many positions; longer utterances are taken in pieces.
            pieces = z.split(self.predictor.positions.shape[0])
            z = torch.cat([self.predictor(p[None], torch.zeros(1, len(p), dtype=torch.bool))[0] for p in pieces])
        return self.head(z).argmax(-1).numpy()
