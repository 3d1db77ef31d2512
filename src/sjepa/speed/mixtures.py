"""Baselines for the mixture: a direct implementation of the paper's equations, and scikit-learn."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from sjepa.targets.gmm import DiagonalGMM

ELEMENTS = 2**25  # largest size of the differences (frames, K, D) in memory


def draw_frames(frames: int, components: int, dimension: int, seed: int) -> Tensor:
    """Draw frames (N, D) from a random mixture that depends only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(components, dimension, generator=generator)
    deviations = 0.5 + torch.rand(components, dimension, generator=generator)
    chosen = torch.randint(components, (frames,), generator=generator)
    return means[chosen] + deviations[chosen] * torch.randn(frames, dimension, generator=generator)


def naive_posterior(mixture: DiagonalGMM, features: Tensor) -> Tensor:
    """Compute the softmax of log pi_k + log N(x; m_k, s_k^2) from differences (n, K, D), in chunks of frames."""
    constant = mixture.weights.log() - 0.5 * (
        mixture.dimension * math.log(2 * math.pi) + mixture.variances.log().sum(1)
    )
    posteriors = []
    for chunk in features.split(rows_per_chunk(mixture)):
        difference = chunk[:, None] - mixture.means  # (n, K, D)
        posteriors.append(torch.softmax(constant - 0.5 * (difference.square() / mixture.variances).sum(2), dim=1))
    return torch.cat(posteriors)


def naive_update(mixture: DiagonalGMM, features: Tensor, q: Tensor, decay: float, minimum_count: float) -> None:
    """Update theta <- decay theta + (1 - decay) theta_hat: first the means, then the variances around them."""
    count, rows = q.sum(0), rows_per_chunk(mixture)
    filled = count.clamp(min=1e-10)[:, None]
    parts = list(zip(features.split(rows), q.split(rows), strict=True))
    means = torch.zeros_like(mixture.means)
    for chunk, share in parts:
        means += (share[:, :, None] * chunk[:, None]).sum(0)
    means /= filled
    variances = torch.zeros_like(means)
    for chunk, share in parts:
        variances += (share[:, :, None] * (chunk[:, None] - means).square()).sum(0)
    variances /= filled
    rate = torch.where(count >= minimum_count, 1 - decay, 0.0)
    mixture.weights.add_(rate * (count / count.sum() - mixture.weights))
    mixture.weights.div_(mixture.weights.sum())
    mixture.means.add_(rate[:, None] * (means - mixture.means))
    mixture.variances.add_(rate[:, None] * (variances - mixture.variances)).clamp_(min=mixture.floor)


def rows_per_chunk(mixture: DiagonalGMM) -> int:
    return max(1, ELEMENTS // mixture.means.numel())


class ScikitLearn:
    """scikit-learn's GaussianMixture, with the same start and number of iterations."""

    def __init__(self, frames: Tensor, start: DiagonalGMM, iterations: int):
        import sklearn.mixture
        import threadpoolctl

        self.mixture, self.limits = sklearn.mixture.GaussianMixture, threadpoolctl.threadpool_limits
        self.frames, self.start, self.iterations = frames, start, iterations

    def fit(self, precision: str, threads: int | None) -> Any:
        """Fit a mixture. `threads` limits the BLAS threads."""
        weights, means, variances = (
            tensor.cpu().double() for tensor in (self.start.weights, self.start.means, self.start.variances)
        )
        fitted = self.mixture(
            len(means),
            covariance_type="diag",
            reg_covar=0.0,
            tol=0.0,
            max_iter=self.iterations,
            weights_init=(weights / weights.sum()).numpy().astype(precision),
            means_init=means.numpy().astype(precision),
            precisions_init=(1 / variances).numpy().astype(precision),
        )
        with warnings.catch_warnings(), self.limits(threads):
            warnings.simplefilter("ignore")  # it warns that it has not converged
            return fitted.fit(self.frames.numpy().astype(precision))
