"""The common interface of all targets: from clean audio to a distribution over K components at every frame."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa import distributed
from sjepa.audio.frames import frame_count
from sjepa.errors import UserError
from sjepa.model.encoder import EncoderNetwork
from sjepa.targets import ema
from sjepa.targets.fit import GmmConfig, anchor_mixture, find_clusters, require_frames
from sjepa.targets.gmm import DiagonalGMM, Statistics
from sjepa.targets.kinds import KINDS, FeatureInputs, TargetName
from sjepa.targets.projection import Directions, Projection


class Targets(nn.Module):
    """Targets of any kind, as the training loop uses them."""

    def __init__(
        self,
        name: TargetName,
        inputs: FeatureInputs,
        gmm: GmmConfig,
        *,
        k: int,
        dimensions: int = 0,
        directions: Directions = "principal",
        hard: bool = False,
        temperature: float = 1.0,
        centred: bool = False,
    ):
        super().__init__()
        kind = KINDS[name]
        self.name, self.kind, self.config, self.seed = name, kind, gmm, inputs.seed
        self.hard = kind.is_hard(hard)
        self.temperature, self.centred = temperature, centred
        self.features = kind.features(inputs)
        self.projection, self.directions = Projection(self.features.dimension, dimensions), directions
        self.codebook = DiagonalGMM(k, dimensions or self.features.dimension)

    @property
    def components(self) -> int:
        return self.codebook.components

    @property
    def online(self) -> bool:
        return self.kind.online

    @property
    def target_encoder(self) -> EncoderNetwork | None:
        return self.features.target_encoder

    @torch.no_grad()
    def frame_features(self, clean: Tensor, layer: int | None) -> Tensor:
        """Return the features (B, T, D) of clean audio from which q is computed."""
        return self.centre(self.features(clean, layer))

    def centre(self, features: Tensor) -> Tensor:
        """Subtract the mean of each utterance, if the targets are centred."""
        if not self.centred:
            return features
        features = features.float()
        return features - features.mean(1, keepdim=True)

    @torch.no_grad()
    def frames_to_fit(self, clean: Tensor, layer: int | None) -> Tensor:
        """Return the frames (B, T, ...) of clean audio that the reservoir samples for fitting."""
        sample, frames = self.features.frames_to_fit(clean, layer), frame_count(clean.shape[1])
        if sample.shape[1] != frames:
            name = type(self.features).__name__
            raise ValueError(f"{name} gives {sample.shape[1]} frames where the encoder has {frames}")
        return self.centre(sample).float()

    @torch.no_grad()
    def layer_features(self, clean: Tensor, layers: Sequence[int]) -> Tensor:
        """Return the features of L layers of the target encoder, concatenated: (B, T, L D)."""
        assert self.target_encoder is not None
        states = self.target_encoder(clean, until=max(layers)).hidden_states
        return torch.cat([self.centre(states[layer + 1]).float() for layer in layers], dim=2)

    def anchor(self, frames: Tensor) -> None:
        """Fit projection and mixture again, to frames from `layer_features` of their layer.

        If the frames have two layers, move from the first to the second.
        """
        layers = frames.split(self.features.dimension, dim=1)
        before = self.projection(layers[0])
        classes = self.codebook.posterior(before).argmax(1) if self.directions == "discriminant" else None
        anchor_mixture(self.codebook, before, self.projection.fit(layers[-1], classes), self.config)
        distributed.broadcast_module(self.projection)
        distributed.broadcast_module(self.codebook)

    def reseed(self, dead: list[int], clean: Tensor, layer: int | None, seed: int) -> int:
        """Restart dead components at random frames of a batch. Return how many were restarted."""
        features = self.projection(self.frame_features(clean, layer).flatten(0, 1))
        chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[: len(dead)]
        self.codebook.restart(torch.tensor(dead[: len(chosen)]), features[chosen.to(features.device)])
        distributed.broadcast_module(self.codebook)
        return len(chosen)

    def fit(self, sample: Tensor) -> list[float]:
        """Fit features, projection and codebook to a sample of frames. Return the log-likelihoods of EM per frame."""
        if self.kind.fits_frames:
            require_frames(self.components, len(sample))
        if float(sample.var(0).max()) == 0.0:
            raise UserError("all frames have the same features: are all files silent or identical? Give other audio")
        learned = self.features.fit(sample)
        if learned.shape[1] != self.features.dimension:
            name = type(self.features).__name__
            raise ValueError(f"{name} has dimension {self.features.dimension}, but frames of width {learned.shape[1]}")
        classes = None
        if self.directions == "discriminant":
            classes = find_clusters(learned, self.components, self.config, self.seed)
        frames = self.projection.fit(learned, classes)
        fitted, curve = self.kind.fit(frames, self.components, self.config, self.seed)
        self.codebook.load_state_dict(fitted.state_dict())
        if not self.kind.reads_encoder:  # a target encoder is the same on all ranks already
            distributed.broadcast_module(self.features)
        distributed.broadcast_module(self.projection)
        distributed.broadcast_module(self.codebook)
        return curve

    @torch.no_grad()
    def forward(self, features: Tensor, aligned: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return q (B, T, K) for features (B, T, D) of clean audio, or for `aligned` features at other times.

        If the codebook is online, also return the statistics of `features` as one vector, for `update`.
        """
        read = features if aligned is None else aligned
        powers, joint = self.log_joint(read)
        posterior = torch.softmax(joint, dim=1)
        if self.hard:
            q = F.one_hot(joint.argmax(1), self.components).float()
        else:
            q = posterior if self.temperature == 1.0 else torch.softmax(joint / self.temperature, dim=1)
        statistics = None
        if self.online:
            if aligned is not None:
                powers, joint = self.log_joint(features)
                posterior = torch.softmax(joint, dim=1)
            # Responsibilities always have temperature 1, so that soft and hard runs have the same clusters.
            statistics = self.codebook.statistics(powers, posterior).flatten()
        return q.view(*read.shape[:2], -1), statistics

    def log_joint(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the powers of features (B, T, D) that statistics sum, and their log densities (B T, K)."""
        powers = self.codebook.powers(self.projection(features.flatten(0, 1)))
        return powers, self.codebook.log_joint(powers)

    @property
    def statistics_size(self) -> int:
        """Length of the statistics that `forward` returns; 0 if the codebook is not online."""
        return Statistics.size(*self.codebook.means.shape) if self.online else 0

    @torch.no_grad()
    def update(self, statistics: Tensor) -> None:
        """Update an online codebook with the statistics of a whole batch, summed over its parts and all ranks."""
        by_frames = self.config.update == "frames"
        whole = Statistics.from_flat(statistics, *self.codebook.means.shape)
        self.codebook.update_online(whole, self.config.decay, self.config.minimum_count, by_frames)

    def follow(self, encoder: EncoderNetwork, decay: float) -> None:
        """Update the target encoder of online targets. Call it after the optimizer step."""
        if self.online and self.target_encoder is not None:
            ema.follow(self.target_encoder, encoder, decay)
