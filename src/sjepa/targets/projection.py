"""Projection of features to principal components, for a mixture in few dimensions.

In 768 dimensions, the posteriors of a diagonal mixture are almost one-hot. In 16 to 128 principal components they are
soft, and clusters match phones equally well.
"""

import torch
from torch import Tensor, nn


class PrincipalComponents(nn.Module):
    """A fixed linear map (D -> d) to the directions of largest variance, or the identity if d is 0."""

    mean: Tensor
    directions: Tensor

    def __init__(self, dimension: int, components: int):
        super().__init__()
        self.components = components
        if components:
            self.register_buffer("mean", torch.zeros(dimension))
            self.register_buffer("directions", torch.zeros(dimension, components))

    @torch.no_grad()
    def fit(self, frames: Tensor) -> Tensor:
        """Compute the directions from a sample (N, D). Return the projected sample (N, d)."""
        if not self.components:
            return frames
        self.mean.copy_(frames.mean(0))
        centred = frames.double() - self.mean
        _, directions = torch.linalg.eigh(centred.mT @ centred)  # ascending
        directions = directions[:, -self.components :].flip(1)
        # The sign of an eigenvector is arbitrary. Make its largest entry positive, for the same result on all machines.
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        self.directions.copy_(directions * largest.sign())
        return self(frames)

    def forward(self, features: Tensor) -> Tensor:
        """Project (..., D) to (..., d) in fp32."""
        if not self.components:
            return features
        with torch.autocast(features.device.type, enabled=False):
            return (features.float() - self.mean) @ self.directions
