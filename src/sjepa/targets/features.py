"""Features that targets are made from: MFCCs, a layer of the target encoder, or a random projection.

All of them see clean audio (B, N) and give one vector per encoder frame (B, T, D).
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.audio.frames import STRIDE
from sjepa.audio.mfcc import MfccConfig, log_mel, mfcc
from sjepa.model.encoder import EncoderNetwork
from sjepa.targets import ema


class Features(nn.Module, ABC):
    """The interface of features."""

    dimension: int
    target_encoder: EncoderNetwork | None = None

    @abstractmethod
    def forward(self, clean: Tensor, layer: int | None) -> Tensor:
        """Return features (B, T, D). `layer` is the active layer of the encoder, if they come from one."""

    def frames_to_fit(self, clean: Tensor, layer: int | None) -> Tensor:
        """Return the frames (B, T, ...) that the reservoir samples: by default, the features."""
        features: Tensor = self(clean, layer)
        return features

    def fit(self, sample: Tensor) -> Tensor:
        """Learn statistics from a sample of frames, if needed. Return the features of these frames."""
        return sample


class MfccFeatures(Features):
    """MFCCs with deltas of the clean audio."""

    def __init__(self, config: MfccConfig):
        super().__init__()
        self.config, self.dimension = config, config.dimension

    def forward(self, clean: Tensor, layer: int | None) -> Tensor:
        return mfcc(clean, self.config)


class EncoderFeatures(Features):
    """The output of the target encoder at the active layer."""

    def __init__(self, encoder: EncoderNetwork):
        super().__init__()
        self.encoder = ema.copy_encoder(encoder)
        self.dimension = encoder.config.hidden_size

    @property
    def target_encoder(self) -> EncoderNetwork:  # type: ignore[override]
        return self.encoder

    def forward(self, clean: Tensor, layer: int | None) -> Tensor:
        return self.encoder(clean, until=layer).last


class RandomProjection(Features):
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

    def frames_to_fit(self, clean: Tensor, layer: int | None) -> Tensor:
        return log_mel(clean, self.MELS, STRIDE)

    def fit(self, sample: Tensor) -> Tensor:
        self.mean.copy_(sample.mean(0))
        self.deviation.copy_(sample.std(0).clamp(min=1e-5))
        return self.project(sample)

    def forward(self, clean: Tensor, layer: int | None) -> Tensor:
        with torch.autocast(clean.device.type, enabled=False):
            return self.project(self.frames_to_fit(clean, layer))

    def project(self, energies: Tensor) -> Tensor:
        return F.normalize((energies - self.mean) / self.deviation @ self.projection, dim=-1)
