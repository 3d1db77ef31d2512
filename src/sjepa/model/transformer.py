"""Post-norm transformer layers, and the stack of layers with its input position encoding and norm."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sjepa.model.activation import plain_gelu
from sjepa.model.gpu_support import can_use_kernels
from sjepa.model.position import ConvPosition
from sjepa.torch_private import keep_attention

Activation = Literal["gelu", "relu"]


class Attention(nn.Module):
    """Multi-head self-attention, with the weight names of Hugging Face's HuBERT."""

    def __init__(self, hidden_size: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    @torch.no_grad()
    def share_queries_and_keys(self, gain: float) -> None:
        """Start queries and keys as one scaled orthogonal matrix: a frame first attends to itself and similar ones."""
        nn.init.orthogonal_(self.q_proj.weight, gain)
        self.k_proj.weight.copy_(self.q_proj.weight)

    def forward(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        batch, frames, hidden = x.shape
        projections = (self.q_proj, self.k_proj, self.v_proj)
        qkv = F.linear(x, torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections]))
        q, k, v = qkv.view(batch, frames, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=key_mask, dropout_p=dropout)
        return self.out_proj(attended.transpose(1, 2).reshape(batch, frames, hidden))


class LayerNorm(nn.LayerNorm):
    """Layer norm in fp32 that returns the precision of its input, to halve memory traffic in bf16."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.weight.float(), self.bias.float()
            return F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


def gelu_dropout(x: Tensor, p: float) -> Tensor:
    """Compute dropout(gelu(x)). On a GPU, one kernel does both with few random numbers."""
    if p > 0 and can_use_kernels(x):
        from sjepa.model import kernels

        return kernels.gelu_dropout(x, torch.randint(2**31, (1,), device=x.device), p)
    return F.dropout(plain_gelu(x), p)


class FeedForward(nn.Module):
    """The feed-forward block of a transformer layer."""

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
    """One post-norm layer, with the weight names of Hugging Face's HuBERT."""

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
        self.recompute = False
        """Recompute the layer in the backward pass instead of storing its activations."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        if self.recompute and self.training and torch.is_grad_enabled():
            output: Tensor = checkpoint(self.compute, x, key_mask, use_reentrant=False, context_fn=keep_attention)
            return output
        return self.compute(x, key_mask)

    def compute(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        x = self.layer_norm(x + self.dropout(self.attention(x, key_mask)))
        return self.final_layer_norm(x + self.dropout(self.feed_forward(x)))


class TransformerStack(nn.Module):
    """Position encoding, norm and layers: the module that Hugging Face calls `encoder`."""

    def __init__(self, position: ConvPosition, hidden_size: int, dropout: float, layers: list[TransformerLayer]):
        super().__init__()
        self.pos_conv_embed = position
        self.layer_norm = LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the input of layer 0, with masked frames zeroed. `EncoderNetwork` runs the layers."""
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(2), 0.0)
        return self.dropout(self.layer_norm(x + self.pos_conv_embed(x)))
