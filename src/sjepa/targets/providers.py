"""Targets behind one interface: clean audio in, a distribution over K components at every frame out.

Every provider is a kind of features (MFCC, a layer of the target encoder, a random projection) and a codebook
over them, which is always a DiagonalGMM: k-means centres are a mixture with one shared variance, whose argmax
is the nearest centre.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa import distributed
from sjepa.audio.mfcc import MfccConfig, log_mel, mfcc
from sjepa.errors import UserError
from sjepa.model.encoder import Encoder
from sjepa.model.frontend import STRIDE
from sjepa.targets import ema
from sjepa.targets.fit import GmmConfig, anchor_mixture, fit_kmeans, fit_mixture, require_frames
from sjepa.targets.gmm import DiagonalGMM
from sjepa.targets.layer import LayerChoice

TargetKind = Literal["mfcc-gmm", "online-gmm", "mfcc-kmeans", "encoder-gmm", "encoder-kmeans", "best-rq"]
CODES = ("mfcc-kmeans", "encoder-kmeans", "best-rq")
"""Kinds whose targets are the nearest centre, and never a posterior."""


class MfccFeatures(nn.Module):
    def __init__(self, config: MfccConfig):
        super().__init__()
        self.config, self.dimension = config, config.dimension

    def forward(self, clean: Tensor) -> Tensor:
        return mfcc(clean, self.config)


class EncoderFeatures(nn.Module):
    """The target encoder's output at the active layer."""

    def __init__(self, encoder: Encoder, layer: LayerChoice):
        super().__init__()
        self.encoder, self.layer = ema.copy_of(encoder), layer
        self.dimension = encoder.config.hidden_size

    def forward(self, clean: Tensor) -> Tensor:
        return self.encoder(clean, until=self.layer.active).last


class RandomProjection(nn.Module):
    """BEST-RQ's features: log-mel energies, standardised, through a frozen random matrix, to unit length."""

    MELS, SIZE = 80, 16
    mean: Tensor
    deviation: Tensor
    projection: Tensor

    def __init__(self, seed: int):
        super().__init__()
        self.dimension = self.SIZE
        self.register_buffer("mean", torch.zeros(self.MELS))
        self.register_buffer("deviation", torch.ones(self.MELS))
        projection = torch.empty(self.MELS, self.SIZE)
        nn.init.xavier_uniform_(projection, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("projection", projection)

    def energies(self, clean: Tensor) -> Tensor:
        return log_mel(clean, self.MELS, STRIDE)

    def forward(self, clean: Tensor) -> Tensor:
        with torch.autocast(clean.device.type, enabled=False):
            return F.normalize((self.energies(clean) - self.mean) / self.deviation @ self.projection, dim=-1)


def components_of(kind: str, gmm: GmmConfig) -> int:
    return gmm.k_mfcc if kind.startswith("mfcc") else gmm.k


class Targets(nn.Module):
    """What the loop sees of any kind of targets."""

    def __init__(
        self,
        kind: TargetKind,
        encoder: Encoder,
        *,
        gmm: GmmConfig,
        mfcc: MfccConfig,
        layer: LayerChoice,
        hard: bool,
        temperature: float,
        centred: bool,
        seed: int,
    ):
        super().__init__()
        self.kind, self.config, self.seed = kind, gmm, seed
        self.online = kind == "online-gmm"
        self.hard = hard or kind in CODES
        self.temperature, self.centred = temperature, centred
        features: MfccFeatures | EncoderFeatures | RandomProjection
        if kind.startswith("mfcc"):
            features = MfccFeatures(mfcc)
        elif kind == "best-rq":
            features = RandomProjection(seed)
        else:
            features = EncoderFeatures(encoder, layer)
        self.features = features
        self.codebook = DiagonalGMM(components_of(kind, gmm), features.dimension)

    @property
    def components(self) -> int:
        return self.codebook.components

    @property
    def target_encoder(self) -> Encoder | None:
        return self.features.encoder if isinstance(self.features, EncoderFeatures) else None

    @torch.no_grad()
    def hear(self, clean: Tensor) -> Tensor:
        """The features (B, T, D) of clean audio that q is made from."""
        return self.shifted(self.features(clean))

    def shifted(self, features: Tensor) -> Tensor:
        """Without each utterance's mean, where that is asked for."""
        if not self.centred:
            return features
        features = features.float()
        return features - features.mean(1, keepdim=True)

    @torch.no_grad()
    def hear_layers(self, clean: Tensor, layers: tuple[int, int]) -> Tensor:
        """Features of two layers of the target encoder beside each other: (B, T, 2 D)."""
        assert self.target_encoder is not None
        states = self.target_encoder(clean, until=max(layers)).hidden_states
        return torch.cat([self.shifted(states[layer + 1]).float() for layer in layers], dim=2)

    def anchor(self, frames: Tensor) -> None:
        """Move the mixture from one layer to another, given frames as `hear_layers` has them."""
        before, after = frames.chunk(2, dim=1)
        anchor_mixture(self.codebook, before, after, self.config)
        distributed.broadcast_module(self.codebook)

    def frames_to_fit(self, clean: Tensor) -> Tensor:
        """What the codebook's reservoir samples."""
        return (
            self.features.energies(clean) if isinstance(self.features, RandomProjection) else self.hear(clean).float()
        )

    def reseed(self, dead: list[int], clean: Tensor, seed: int) -> int:
        """Start dead components anew at frames of a batch, drawn at random; returns how many there were frames for."""
        features = self.hear(clean).flatten(0, 1)
        chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[: len(dead)]
        self.codebook.restart(torch.tensor(dead[: len(chosen)]), features[chosen.to(features.device)])
        distributed.broadcast_module(self.codebook)
        return len(chosen)

    def fit(self, frames: Tensor) -> list[float]:
        """Fit the codebook to a sample of frames; returns EM's log-likelihoods per frame."""
        curve: list[float] = []
        require_frames(self.components, len(frames))
        if float(frames.var(0).max()) == 0.0:
            raise UserError("the audio's features do not vary at all: is every file silent or the same?")
        if isinstance(self.features, RandomProjection):
            self.features.mean.copy_(frames.mean(0))
            self.features.deviation.copy_(frames.std(0).clamp(min=1e-5))
            generator = torch.Generator().manual_seed(self.seed + 1)
            codes = F.normalize(torch.randn(self.codebook.means.shape, generator=generator), dim=1)
            fitted = DiagonalGMM.from_parameters(torch.ones(self.components), codes, torch.ones_like(codes))
        elif self.kind.endswith("kmeans"):
            fitted = fit_kmeans(frames, self.components, self.config, self.seed)
        else:
            fitted, curve = fit_mixture(frames, self.components, self.config, self.seed)
        self.codebook.load_state_dict(fitted.state_dict())
        distributed.broadcast_module(self.codebook)
        return curve

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """q (B, T, K) of the features (B, T, D) of clean audio. An online codebook then learns from the same frames."""
        powers = self.codebook.powers(features.flatten(0, 1))
        joint = self.codebook.log_joint(powers)
        posterior = torch.softmax(joint, dim=1)
        if self.hard:
            q = F.one_hot(joint.argmax(1), self.components).float()
        else:
            q = posterior if self.temperature == 1.0 else torch.softmax(joint / self.temperature, dim=1)
        if self.online:
            # Responsibilities at temperature 1 whatever the targets' softness: soft and hard runs share their clusters.
            statistics = self.codebook.statistics(powers, posterior)
            total = distributed.sum_over_ranks(statistics.flat())
            statistics = type(statistics).from_flat(total, *self.codebook.means.shape)
            by_frames = self.config.update == "frames"
            self.codebook.update_online(statistics, self.config.decay, self.config.minimum_count, by_frames)
        return q.view(*features.shape[:2], -1)

    def follow(self, encoder: Encoder, decay: float) -> None:
        """After the optimizer's step: move the target encoder of online targets."""
        if self.online and self.target_encoder is not None:
            ema.follow(self.target_encoder, encoder, decay)
