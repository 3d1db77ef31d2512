"""The encoder written with plain convolutions, for programs that read its graph."""

import copy
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.model.encoder_config import STRIDES
from sjepa.model.frontend import VARIANCE_FLOOR, ConvLayer
from sjepa.model.transformer import LayerNorm
from sjepa.runs.encoder import Encoder


class PlainEncoder(nn.Module):
    """Waveforms (B, N) of one length to the hidden states, a tuple of (B, T, D): layer 0's input, then each output.

    The encoder's front end and position encoding are written for speed in PyTorch (folded norms, Fourier transforms).
    This module computes the same functions with convolutions, which every runtime optimises.
    """

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = copy.deepcopy(encoder).cpu().eval().requires_grad_(False)
        for module in self.encoder.modules():
            if isinstance(module, LayerNorm):  # sjepa's own switches autocast off, which a graph would record
                module.__class__ = nn.LayerNorm  # type: ignore[assignment]

    def forward(self, waveforms: Tensor) -> tuple[Tensor, ...]:
        parts = self.encoder
        if parts.feature_extractor.normalizes_waveforms:
            variance, mean = torch.var_mean(waveforms, 1, unbiased=False, keepdim=True)
            waveforms = (waveforms - mean) * torch.rsqrt(variance + VARIANCE_FLOOR)
        x = waveforms.unsqueeze(1)
        for index, convolution in enumerate(cast(list[ConvLayer], list(parts.feature_extractor.conv_layers))):
            x = F.conv1d(x, convolution.conv.weight, stride=STRIDES[index])
            x = F.gelu(x if index else convolution.layer_norm(x))
        x = parts.feature_projection(x.transpose(1, 2))
        position = parts.encoder.pos_conv_embed.conv(x.transpose(1, 2))[
            :, :, :-1
        ]  # an even kernel gives one frame too many
        x = parts.encoder.layer_norm(x + F.gelu(position).transpose(1, 2))
        states = [x]
        for layer in parts.encoder.layers:
            x = layer(x)
            states.append(x)
        return tuple(states)
