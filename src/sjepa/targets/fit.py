"""Fitting a codebook to a sample of frames: mini-batch k-means, then EM."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sjepa.errors import UserError
from sjepa.targets.gmm import DiagonalGMM
from sjepa.targets.kmeans import kmeans, nearest

ANCHOR_ITERATIONS = 3  # few, so that components stay what they are


@dataclass(frozen=True)
class GmmConfig:
    """The mixtures whose posteriors are the targets."""

    k: int = 500
    """Components over encoder features (phase 2)."""
    k_mfcc: int = 100
    """Components over MFCCs (phase 1)."""
    reservoir: int = 200_000
    """Frames kept, uniformly, for fitting."""
    fit_hours: float = 100.0
    """Audio that is streamed past the reservoir; all of it where the corpus is smaller."""
    kmeans_iterations: int = 5
    """Passes of mini-batch k-means."""
    em_iterations: int = 20
    """Iterations of expectation-maximisation."""
    variance_floor: float = 1e-6
    """Smallest variance."""
    relative_variance_floor: float = 1e-3
    """Nor smaller than this share of the dimension's global variance (ours): far below it fp32 loses the posterior."""
    decay: float = 0.999
    """Decay of the online update."""
    minimum_count: float = 0.01
    """A component that a batch gives fewer frames than this keeps its parameters for that step."""
    reseed: bool = False
    """Start dead components anew at frames of the batch, at every log line (the paper does not)."""
    update: Literal["parameters", "frames"] = "parameters"
    """What the online update averages: every component's parameters alike (paper), or its frames (stepwise EM)."""


def require_frames(components: int, frames: int) -> None:
    if components > frames:
        raise UserError(
            f"K = {components} components need at least as many frames; there are {frames:,}. "
            "Lower gmm.k or gmm.k_mfcc, or add audio"
        )


def initial_mixture(frames: Tensor, centres: Tensor, floor: Tensor) -> DiagonalGMM:
    """Weights, means and variances of the k-means clusters."""
    label = nearest(frames - frames.mean(0), centres - frames.mean(0))
    size = torch.zeros(len(centres), device=frames.device).index_add_(
        0, label, torch.ones_like(label, dtype=torch.float)
    )
    filled = size.clamp(min=1)[:, None]
    mean = torch.zeros_like(centres).index_add_(0, label, frames) / filled
    variance = torch.zeros_like(centres).index_add_(0, label, (frames - mean[label]).square()) / filled
    single = (size < 2)[:, None]  # a cluster of one frame has no spread of its own
    mean = torch.where(size[:, None] > 0, mean, centres)
    variance = torch.where(single, frames.var(0, unbiased=False), variance)
    return DiagonalGMM.from_parameters(size.clamp(min=1e-3), mean, variance, floor)


def fit_mixture(frames: Tensor, components: int, config: GmmConfig, seed: int) -> tuple[DiagonalGMM, list[float]]:
    """A diagonal GMM of the sample (N, D), and the log-likelihood per frame before each EM iteration."""
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
    """Move a mixture to other features of the same frames: each component to where its frames lie there, then EM.

    A component keeps its number, and so what the head has learned of it.
    """
    share = gmm.posterior(before)
    gmm.floor.copy_(variance_floor(after, config))
    gmm.centre.copy_(after.mean(0))
    gmm.maximize(gmm.statistics(gmm.powers(after), share))
    for _ in range(ANCHOR_ITERATIONS):
        gmm.maximize(gmm.expect(after))


def variance_floor(frames: Tensor, config: GmmConfig) -> Tensor:
    return torch.clamp(config.relative_variance_floor * frames.var(0, unbiased=False), min=config.variance_floor)


def fit_kmeans(frames: Tensor, components: int, config: GmmConfig, seed: int) -> DiagonalGMM:
    """HuBERT's offline codebook as a mixture of equal weights and unit variances: its argmax is the nearest centre."""
    generator = torch.Generator().manual_seed(seed)
    centres = kmeans(frames, components, config.kmeans_iterations, generator)
    return DiagonalGMM.from_parameters(torch.ones(components, device=frames.device), centres, torch.ones_like(centres))
