"""Convolutional position encoding and post-norm transformer layers."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Activation = Literal["gelu", "relu"]


class Attention(nn.Module):
    def __init__(self, hidden_size: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        batch, frames, hidden = x.shape
        projections = (self.q_proj, self.k_proj, self.v_proj)
        qkv = F.linear(x, torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections]))
        q, k, v = qkv.view(batch, frames, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=key_mask, dropout_p=dropout)
        return self.out_proj(attended.transpose(1, 2).reshape(batch, frames, hidden))


class FeedForward(nn.Module):
    def __init__(self, hidden_size: int, inner_size: int, dropout: float, activation: Activation):
        super().__init__()
        self.intermediate_dense = nn.Linear(hidden_size, inner_size)
        self.output_dense = nn.Linear(inner_size, hidden_size)
        self.activation = nn.GELU() if activation == "gelu" else nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.output_dense(self.dropout(self.activation(self.intermediate_dense(x))))


class TransformerLayer(nn.Module):
    """One post-norm layer, weights named as in Hugging Face's HuBERT."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        inner_size: int,
        *,
        dropout: float,
        attention_dropout: float,
        activation_dropout: float,
        activation: Activation = "gelu",
    ):
        super().__init__()
        self.attention = Attention(hidden_size, heads, attention_dropout)
        self.layer_norm = nn.LayerNorm(hidden_size)
        self.feed_forward = FeedForward(hidden_size, inner_size, activation_dropout, activation)
        self.final_layer_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        x = self.layer_norm(x + self.dropout(self.attention(x, key_mask)))
        return self.final_layer_norm(x + self.dropout(self.feed_forward(x)))


class ConvPosition(nn.Module):
    """Relative position from a wide grouped convolution, computed by overlap-save FFT in fp32.

    The products per frequency are small matrices, so the work is a thirtieth of the direct convolution's.
    """

    def __init__(self, hidden_size: int, kernel: int, groups: int):
        super().__init__()
        conv = nn.Conv1d(hidden_size, hidden_size, kernel, padding=kernel // 2, groups=groups)
        nn.init.normal_(conv.weight, std=math.sqrt(4 / (kernel * hidden_size)))
        assert conv.bias is not None
        nn.init.zeros_(conv.bias)
        self.conv = weight_norm(conv, dim=2)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        with torch.autocast(x.device.type, enabled=False):
            y = grouped_convolution(x.float(), self.conv.weight.float(), self.conv.groups) + self.conv.bias
        return F.gelu(y)


def grouped_convolution(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Same-length grouped convolution along time: x (B, T, D), weight (D, D / groups, kernel) with an even kernel."""
    batch, frames, hidden = x.shape
    width, kernel = weight.shape[1], weight.shape[2]
    size = 2 * kernel  # of the transform: `hop` frames of output from each block
    hop = size - kernel + 1
    blocks = -(-frames // hop)
    before = kernel // 2
    padded = F.pad(x.transpose(1, 2), (before, blocks * hop + kernel - 1 - before - frames))
    spectra = torch.fft.rfft(padded.unfold(2, size, hop))  # (B, D, blocks, frequencies)
    # Convolution layers correlate, so the kernel is flipped to make a true convolution.
    filters = torch.fft.rfft(weight.flip(2), size)  # (D, width, frequencies)
    frequencies = spectra.shape[-1]
    spectra = spectra.view(batch, groups, width, blocks, frequencies).permute(4, 1, 0, 3, 2)
    filters = filters.view(groups, width, width, frequencies).permute(3, 0, 2, 1)
    products = torch.bmm(spectra.reshape(-1, batch * blocks, width), filters.reshape(-1, width, width))
    products = products.view(frequencies, groups, batch, blocks, width).permute(2, 1, 4, 3, 0)
    y = torch.fft.irfft(products, size)[..., kernel - 1 :]  # (B, groups, width, blocks, hop)
    return y.reshape(batch, hidden, blocks * hop)[:, :, :frames].transpose(1, 2)


class TransformerStack(nn.Module):
    """What Hugging Face calls `encoder`: position, norm and the layers."""

    def __init__(self, position: ConvPosition, hidden_size: int, dropout: float, layers: list[TransformerLayer]):
        super().__init__()
        self.pos_conv_embed = position
        self.layer_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)
