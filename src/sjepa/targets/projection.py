"""Projection of features to few directions, for a mixture in few dimensions.

In 768 dimensions, the posteriors of a diagonal mixture are almost one-hot. In 16 to 128 directions they are soft, and
clusters match phones equally well.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Directions = Literal["principal", "discriminant"]
RIDGE = 1e-6  # added to the covariance within classes, as a share of its mean variance: some features never vary


class Projection(nn.Module):
    """A fixed linear map (D -> d), or the identity if d is 0."""

    mean: Tensor
    directions: Tensor

    def __init__(self, dimension: int, size: int):
        super().__init__()
        self.size = size
        if size:
            self.register_buffer("mean", torch.zeros(dimension))
            self.register_buffer("directions", torch.zeros(dimension, size))

    @torch.no_grad()
    def fit(self, frames: Tensor, classes: Tensor | None = None) -> Tensor:
        """Compute the directions from a sample (N, D). Return the projected sample (N, d).

        They are the principal ones, or, given the class (N,) of each frame, the discriminant ones.
        """
        if not self.size:
            return frames
        self.mean.copy_(frames.mean(0))
        centred = frames.double() - self.mean
        found = principal_directions(centred) if classes is None else discriminant_directions(centred, classes)
        found = found[:, : self.size]
        # The sign of an eigenvector is arbitrary. Make its largest entry positive, for the same result on all machines.
        largest = found.gather(0, found.abs().argmax(0, keepdim=True))
        self.directions.copy_(found * largest.sign())
        return self(frames)

    def forward(self, features: Tensor) -> Tensor:
        """Project (..., D) to (..., d) in fp32."""
        if not self.size:
            return features
        with torch.autocast(features.device.type, enabled=False):
            return (features.float() - self.mean) @ self.directions


def principal_directions(centred: Tensor) -> Tensor:
    """Return directions (D, D) in the order of their variance, the largest first."""
    return torch.linalg.eigh(centred.mT @ centred).eigenvectors.flip(1)


def discriminant_directions(centred: Tensor, classes: Tensor) -> Tensor:
    """Return directions (D, D) in the order in which they separate the classes, the best first (Fisher's).

    Within classes, the projected frames have the identity as covariance: a diagonal mixture fits them well.
    """
    sums = centred.new_zeros(int(classes.max()) + 1, centred.shape[1]).index_add_(0, classes, centred)
    sizes = torch.bincount(classes).clamp(min=1)
    between = (sums / sizes[:, None]).mT @ sums / len(centred)
    within = centred.mT @ centred / len(centred) - between
    within.diagonal().add_(RIDGE * within.diagonal().mean())
    root = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(root, between, upper=False)
    whitened = torch.linalg.solve_triangular(root, half.mT, upper=False)
    directions = torch.linalg.eigh(whitened).eigenvectors.flip(1)
    return torch.linalg.solve_triangular(root.mT, directions, upper=True)
