"""The kinds of targets: one entry per kind. Adding a kind touches this file only.

A kind combines features with a method to fit a codebook. The codebook is always a DiagonalGMM. K-means centres become a
mixture with one shared variance, whose most likely component is the nearest centre.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from torch import Tensor

from sjepa.audio.mfcc import MfccConfig
from sjepa.model.encoder import EncoderNetwork
from sjepa.targets.features import EncoderFeatures, Features, MfccFeatures, RandomProjection
from sjepa.targets.fit import GmmConfig, draw_codes, fit_kmeans, fit_mixture
from sjepa.targets.gmm import DiagonalGMM


@dataclass(frozen=True)
class FeatureInputs:
    """Inputs available to a feature extractor."""

    encoder: EncoderNetwork
    mfcc: MfccConfig
    seed: int


Fit = Callable[[Tensor, int, GmmConfig, int], tuple[DiagonalGMM, list[float]]]
"""Maps frames (N, D), components, settings and seed to a codebook and its log-likelihood per EM iteration."""


@dataclass(frozen=True)
class TargetKind:
    """One kind of targets."""

    features: Callable[[FeatureInputs], Features]
    fit: Fit
    reads_encoder: bool = False
    """Whether features come from a trained encoder. The first phase has one only if the run starts from one."""
    online: bool = False
    """Whether the target encoder and the mixture are updated during training."""
    has_posteriors: bool = True
    """Whether targets can be posteriors. If not, the target is the nearest code."""
    can_centre: bool = True
    """Whether the mean of each utterance may be subtracted from its features. Only if `fit` and `forward` are affine in
    the frames: fitting centres what `frames_to_fit` returns, training what `forward` returns."""
    fits_frames: bool = True
    """Whether the codebook is fitted to frames. It then needs at least as many frames as components."""

    def is_hard(self, requested: bool) -> bool:
        """Return whether targets are one-hot: if requested, or if there are no posteriors."""
        return requested or not self.has_posteriors

    def plain_features(self, mfcc: MfccConfig) -> Features:
        """Return the features of a kind that reads no encoder."""
        return self.features(FeatureInputs(cast(EncoderNetwork, None), mfcc, 0))

    def count_dimensions(self, hidden_size: int, mfcc: MfccConfig) -> int:
        """Return the dimension of the features, given the width of the encoder."""
        return hidden_size if self.reads_encoder else self.plain_features(mfcc).dimension


def mfcc_features(inputs: FeatureInputs) -> Features:
    return MfccFeatures(inputs.mfcc)


def encoder_features(inputs: FeatureInputs) -> Features:
    return EncoderFeatures(inputs.encoder)


def random_projection(inputs: FeatureInputs) -> Features:
    return RandomProjection(inputs.seed)


KINDS: dict[str, TargetKind] = {
    "mfcc-gmm": TargetKind(mfcc_features, fit_mixture),
    "mfcc-kmeans": TargetKind(mfcc_features, fit_kmeans, has_posteriors=False),
    "best-rq": TargetKind(random_projection, draw_codes, has_posteriors=False, can_centre=False, fits_frames=False),
    "online-gmm": TargetKind(encoder_features, fit_mixture, reads_encoder=True, online=True),
    "encoder-gmm": TargetKind(encoder_features, fit_mixture, reads_encoder=True),
    "encoder-kmeans": TargetKind(encoder_features, fit_kmeans, reads_encoder=True, has_posteriors=False),
}

if TYPE_CHECKING:
    TargetName = str
else:
    TargetName = Literal[tuple(KINDS)]
