"""The encoder f, from waveforms to hidden states: the only network that is used after pre-training."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sjepa.audio.frames import RECEPTIVE_FIELD, describe_too_short
from sjepa.errors import UserError
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.frontend import FeatureExtractor, Moments, frame_counts
from sjepa.model.position import ConvPosition
from sjepa.model.transformer import LayerNorm, TransformerLayer, TransformerStack


class EncoderOutput(NamedTuple):
    """The result of the encoder."""

    hidden_states: list[Tensor]
    """Input of layer 0, then the output of each layer: `hidden_states[l + 1]` for layer l. Each is (B, T, D)."""
    frames: Tensor | None
    """Number of frames of each utterance, if lengths were given. Later frames are padding."""

    @property
    def last(self) -> Tensor:
        return self.hidden_states[-1]


class ScaleGradient(torch.autograd.Function):
    """The identity, with gradients scaled by a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


class FeatureProjection(nn.Module):
    """Norm, linear layer and dropout between feature extractor and transformer."""

    def __init__(self, channels: int, hidden_size: int, dropout: float):
        super().__init__()
        self.layer_norm = LayerNorm(channels)
        self.projection = nn.Linear(channels, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.projection(self.layer_norm(x)))


class EncoderNetwork(nn.Module):
    """HuBERT's architecture at the size of `config`; weights carry Hugging Face's names.

    `runs.encoder.Encoder` adds methods to load, save and use it.
    """

    def __init__(self, config: EncoderConfig | None = None):
        super().__init__()
        self.config = config = config or EncoderConfig()
        self.feature_extractor = FeatureExtractor(config.conv_channels)
        self.feature_projection = FeatureProjection(config.conv_channels, config.hidden_size, config.dropout)
        layers = [
            TransformerLayer(
                config.hidden_size,
                config.heads,
                config.inner_size,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                activation_dropout=config.activation_dropout,
            )
            for _ in range(config.layers)
        ]
        position = ConvPosition(config.hidden_size, config.position_kernel, config.position_groups)
        self.encoder = TransformerStack(position, config.hidden_size, config.dropout, layers)
        self.apply(init_linear)
        if config.attention_start:
            for layer in layers:
                layer.attention.share_queries_and_keys(config.attention_start)

    def forward(
        self,
        waveforms: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        keep: Sequence[bool] | None = None,
        until: int | None = None,
    ) -> EncoderOutput:
        """Return the hidden states of 16 kHz waveforms (B, N).

        `lengths` are the samples per utterance of a padded batch. `mask` (B, T) is True at frames to hide from the
        transformer. `keep` selects the layers to run (LayerDrop). `until` is the last layer that is needed.
        """
        return self.transform(self.convolve(waveforms, lengths), lengths, mask=mask, keep=keep, until=until)

    def convolve(self, waveforms: Tensor, lengths: Tensor | None = None, moments: Moments | None = None) -> Tensor:
        """Return the features (B, T, C) of the feature extractor. Gradients into it are scaled.

        With `moments`, waveforms are normalised as parts of a recording with these statistics.
        """
        check_shape(waveforms)
        features: Tensor = self.feature_extractor(waveforms, lengths, moments)
        if self.training and features.requires_grad:
            features = ScaleGradient.apply(features, self.config.feature_gradient_scale)
        return features

    def transform(
        self,
        features: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        keep: Sequence[bool] | None = None,
        until: int | None = None,
    ) -> EncoderOutput:
        """Return the hidden states for features from `convolve`. The arguments are those of `forward`."""
        x = self.feature_projection(features)
        frames = key_mask = None
        if lengths is not None:
            frames = frame_counts(lengths)
            inside = torch.arange(x.shape[1], device=x.device) < frames[:, None]
            x = x * inside.unsqueeze(2)
            key_mask = inside[:, None, None, :]
        x = self.encoder(x, mask)
        hidden_states = [x]
        needed = self.config.layers if until is None else until + 1
        for index, layer in enumerate(self.encoder.layers[:needed]):
            if keep is None or keep[index]:
                x = layer(x, key_mask)
            hidden_states.append(x)
        return EncoderOutput(hidden_states, frames)


def check_shape(waveforms: Tensor) -> None:
    """Raise UserError unless waveforms have shape (B, N) with at least one frame."""
    if waveforms.dim() != 2:
        raise UserError(f"waveforms should have shape (batch, samples), not {tuple(waveforms.shape)}")
    if waveforms.shape[1] < RECEPTIVE_FIELD:
        raise UserError(describe_too_short(waveforms.shape[1]))


def init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
