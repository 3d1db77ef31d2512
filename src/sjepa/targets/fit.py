"""Fit a codebook to a sample of frames: mini-batch k-means, then EM."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sjepa.bounds import COUNT, INDEX, NOT_NEGATIVE, POSITIVE, SHARE
from sjepa.errors import UserError
from sjepa.targets.gmm import EMPTY, DiagonalGMM
from sjepa.targets.kmeans import assign_clusters, kmeans

ANCHOR_ITERATIONS = 3  # few, so that components keep their meaning


@dataclass(frozen=True)
class GmmConfig:
    """The mixtures whose posteriors are the targets, and how they are fitted."""

    reservoir: Annotated[int, COUNT] = 200_000
    """Number of frames to sample for fitting, uniformly."""
    fit_hours: Annotated[float, POSITIVE] = 100.0
    """Hours of audio to sample from; the whole corpus if it is smaller."""
    kmeans_iterations: Annotated[int, INDEX] = 5
    """Passes of mini-batch k-means."""
    em_iterations: Annotated[int, INDEX] = 20
    """Iterations of expectation-maximisation."""
    variance_floor: Annotated[float, POSITIVE] = 1e-6
    """Smallest variance."""
    relative_variance_floor: Annotated[float, NOT_NEGATIVE] = 1e-3
    """Smallest variance as a share of the global variance of its dimension (not in the paper). Far below it,
    fp32 is inaccurate."""
    decay: Annotated[float, SHARE] = 0.999
    """Decay of the online update."""
    minimum_count: Annotated[float, NOT_NEGATIVE] = 0.01
    """With update = "parameters", a component with fewer frames than this in a batch is not updated in that step."""
    reseed: bool = False
    """Restart dead components at random frames of the batch, at every log line (the paper does not)."""
    update: Literal["parameters", "frames"] = "parameters"
    """What the online update averages: the parameters of each component (paper), or its sufficient statistics over
    frames (stepwise EM)."""


def require_frames(components: int, frames: int) -> None:
    """Raise UserError if there are fewer frames than components."""
    if components > frames:
        raise UserError(
            f"K = {components} components need at least as many frames; there are {frames:,}. "
            "Lower the phase's k, or add audio"
        )


def find_clusters(frames: Tensor, components: int, config: GmmConfig, seed: int) -> Tensor:
    """Return the k-means cluster (N,) of each frame (N, D)."""
    frames, generator = frames.float(), torch.Generator().manual_seed(seed)
    return assign_clusters(frames, kmeans(frames, components, config.kmeans_iterations, generator))


def initial_mixture(frames: Tensor, centres: Tensor, floor: Tensor) -> DiagonalGMM:
    """Return a mixture with the weights, means and variances of the k-means clusters."""
    label = assign_clusters(frames, centres)
    size = torch.zeros(len(centres), device=frames.device).index_add_(
        0, label, torch.ones_like(label, dtype=torch.float)
    )
    filled = size.clamp(min=1)[:, None]
    mean = torch.zeros_like(centres).index_add_(0, label, frames) / filled
    variance = torch.zeros_like(centres).index_add_(0, label, (frames - mean[label]).square()) / filled
    single = (size < 2)[:, None]  # a cluster of one frame has no variance
    mean = torch.where(size[:, None] > 0, mean, centres)
    variance = torch.where(single, frames.var(0, unbiased=False), variance)
    return DiagonalGMM.from_parameters(size.clamp(min=1e-3), mean, variance, floor)


def fit_mixture(frames: Tensor, components: int, config: GmmConfig, seed: int) -> tuple[DiagonalGMM, list[float]]:
    """Fit a diagonal GMM to frames (N, D). Also return the log-likelihood per frame before each EM iteration."""
    frames = frames.float()
    generator = torch.Generator().manual_seed(seed)
    centres = kmeans(frames, components, config.kmeans_iterations, generator)
    gmm = initial_mixture(frames, centres, variance_floor(frames, config))
    curve = []
    for _ in range(config.em_iterations):
        statistics = gmm.expect(frames)
        gmm.maximize(statistics)
        curve.append(float(statistics.log_likelihood / statistics.frames))
    return gmm, curve


def anchor_mixture(gmm: DiagonalGMM, before: Tensor, after: Tensor, config: GmmConfig) -> None:
    """Move a mixture to other features of the same frames: refit each component to its frames there, then run EM.

    Components keep their numbers, so the cluster head stays valid. Empty ones get the mean and variance of all frames,
    because their own are those of the old features.
    """
    share = gmm.posterior(before)
    gmm.floor.copy_(variance_floor(after, config))
    gmm.centre.copy_(after.mean(0))
    moved = gmm.statistics(gmm.powers(after), share)
    gmm.maximize(moved)
    empty = moved.count <= EMPTY
    gmm.means[empty] = after.mean(0)
    gmm.variances[empty] = torch.maximum(after.var(0, unbiased=False), gmm.floor)
    for _ in range(ANCHOR_ITERATIONS):
        gmm.maximize(gmm.expect(after))


def variance_floor(frames: Tensor, config: GmmConfig) -> Tensor:
    return torch.clamp(config.relative_variance_floor * frames.var(0, unbiased=False), min=config.variance_floor)


def fit_kmeans(frames: Tensor, components: int, config: GmmConfig, seed: int) -> tuple[DiagonalGMM, list[float]]:
    """Fit HuBERT's k-means codebook as a mixture with equal weights and variances: its argmax is the nearest centre."""
    generator = torch.Generator().manual_seed(seed)
    centres = kmeans(frames, components, config.kmeans_iterations, generator)
    weights = torch.ones(components, device=frames.device)
    return DiagonalGMM.from_parameters(weights, centres, torch.ones_like(centres)), []


def draw_codes(frames: Tensor, components: int, config: GmmConfig, seed: int) -> tuple[DiagonalGMM, list[float]]:
    """Draw BEST-RQ's codebook: random vectors of unit length, independent of the frames."""
    codes = torch.randn(components, frames.shape[1], generator=torch.Generator().manual_seed(seed + 1))
    codes = F.normalize(codes, dim=1).to(frames.device)
    return DiagonalGMM.from_parameters(torch.ones(components, device=frames.device), codes, torch.ones_like(codes)), []
