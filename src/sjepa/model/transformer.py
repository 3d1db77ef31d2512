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


class LayerNorm(nn.LayerNorm):
    """Normalises in fp32 and gives back its input's precision, so that a bf16 network moves half the bytes."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float()).to(x.dtype)


def gelu_dropout(x: Tensor, p: float) -> Tensor:
    """dropout(gelu(x)); on a GPU in one pass with few random numbers."""
    if x.is_cuda and p > 0:
        from sjepa.model import kernels

        return kernels.gelu_dropout(x, torch.randint(2**31, (1,), device=x.device), p)
    return F.dropout(F.gelu(x), p)


class FeedForward(nn.Module):
    def __init__(self, hidden_size: int, inner_size: int, dropout: float, activation: Activation):
        super().__init__()
        self.intermediate_dense = nn.Linear(hidden_size, inner_size)
        self.output_dense = nn.Linear(inner_size, hidden_size)
        self.activation, self.dropout = activation, dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.intermediate_dense(x)
        p = self.dropout if self.training else 0.0
        x = gelu_dropout(x, p) if self.activation == "gelu" else F.dropout(F.relu(x), p)
        return self.output_dense(x)


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
        self.layer_norm = LayerNorm(hidden_size)
        self.feed_forward = FeedForward(hidden_size, inner_size, activation_dropout, activation)
        self.final_layer_norm = LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        x = self.layer_norm(x + self.dropout(self.attention(x, key_mask)))
        return self.final_layer_norm(x + self.dropout(self.feed_forward(x)))


class ConvPosition(nn.Module):
    """Relative position from a wide grouped convolution, weight-normalised over each tap."""

    def __init__(self, hidden_size: int, kernel: int, groups: int):
        super().__init__()
        conv = nn.Conv1d(hidden_size, hidden_size, kernel, padding=kernel // 2, groups=groups)
        nn.init.normal_(conv.weight, std=math.sqrt(4 / (kernel * hidden_size)))
        assert conv.bias is not None
        nn.init.zeros_(conv.bias)
        self.conv = weight_norm(conv, dim=2)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        weights = self.conv.parametrizations.weight
        gain, direction = weights.original0, weights.original1
        # torch's own weight norm over the last dimension is slow.
        weight = direction * (gain / torch.linalg.vector_norm(direction, dim=(0, 1), keepdim=True))
        convolve = convolve_by_blocks if x.is_cuda else convolve_by_fft
        return F.gelu(convolve(x, weight, self.conv.groups) + self.conv.bias)


def convolve_by_blocks(x: Tensor, weight: Tensor, groups: int, block: int = 16) -> Tensor:
    """Same-length grouped convolution along time as one batched product, for GPUs.

    x is (B, T, D), weight (D, D / groups, kernel) with an even kernel. A block of 16 output frames reads
    16 + kernel - 1 input frames; one matrix a group holds the kernel at all 16 places.
    """
    batch, frames, hidden = x.shape
    width, kernel = weight.shape[1], weight.shape[2]
    blocks, reach = -(-frames // block), -(-(block + kernel - 1) // block)  # each block reads `reach` blocks
    x = x.to(torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype)
    padded = F.pad(x, (0, 0, kernel // 2, (blocks + reach) * block - kernel // 2 - frames))
    pieces = padded.view(batch, blocks + reach, block, groups, width)
    windows = torch.stack([pieces[:, m : m + blocks] for m in range(reach)], dim=2)  # (B, blocks, reach, 16, G, width)
    windows = windows.permute(4, 0, 1, 2, 3, 5).reshape(groups, batch * blocks, reach * block * width)
    # Each row of a (16, span + 1) table that is cut to (16, span) starts one place later than the row before.
    span = reach * block
    table = F.pad(weight.to(x.dtype), (0, span + 1 - kernel)).unsqueeze(2).expand(-1, -1, block, -1)
    table = table.reshape(hidden, width, block * (span + 1))[..., : block * span].view(
        groups, width, width, block, span
    )
    table = table.permute(0, 4, 2, 3, 1).reshape(groups, span * width, block * width)
    y = torch.bmm(windows, table).view(groups, batch, blocks * block, width)
    return y.permute(1, 2, 0, 3).reshape(batch, blocks * block, hidden)[:, :frames]


def convolve_by_fft(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """The same by overlap-save FFT, for CPUs: a thirtieth of the arithmetic."""
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
        self.layer_norm = LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)
