"""The size of an encoder."""

from dataclasses import dataclass
from typing import Annotated, get_type_hints

from sjepa.bounds import LAYERS, NOT_NEGATIVE, SHARE, SIZE, check_bounds
from sjepa.errors import UserError

# The convolutions of the front end.
KERNELS = (10, 3, 3, 3, 3, 2, 2)
STRIDES = (5, 2, 2, 2, 2, 2, 2)
MAX_WEIGHTS = 2e10  # 80 GB in fp32


@dataclass(frozen=True)
class EncoderConfig:
    """Size and regularisation of the encoder. `EncoderConfig()` is the paper's encoder.

    Example:
        >>> from sjepa import Encoder, EncoderConfig
        >>> sum(p.numel() for p in Encoder(EncoderConfig(layers=2)).parameters())
        23492224
    """

    hidden_size: Annotated[int, SIZE] = 768
    """Width of the transformer."""
    layers: Annotated[int, LAYERS] = 6
    """Transformer layers."""
    heads: Annotated[int, SIZE] = 12
    """Attention heads. Must divide the width."""
    inner_size: Annotated[int, SIZE] = 3072
    """Width inside the feed-forward blocks."""
    conv_channels: Annotated[int, SIZE] = 512
    """Channels of the convolutional front end."""
    position_kernel: Annotated[int, SIZE] = 128
    """Kernel size of the convolutional position encoding, in frames. Must be even."""
    position_groups: Annotated[int, SIZE] = 16
    """Groups of the position convolution. Must divide the width."""
    dropout: Annotated[float, SHARE] = 0.1
    """Dropout on residual branches and embeddings."""
    attention_dropout: Annotated[float, SHARE] = 0.1
    """Dropout on attention weights."""
    activation_dropout: Annotated[float, SHARE] = 0.1
    """Dropout inside the feed-forward blocks."""
    layerdrop: Annotated[float, SHARE] = 0.05
    """Probability that a transformer layer is skipped in a training step."""
    attention_start: Annotated[float, NOT_NEGATIVE] = 0.0
    """If positive (try 1), queries and keys start as the same random orthogonal matrix, scaled by this gain: a frame
    first attends to itself and to similar frames."""
    feature_gradient_scale: Annotated[float, NOT_NEGATIVE] = 0.1
    """Scale of the gradients that reach the convolutional front end."""

    def __post_init__(self) -> None:
        check_bounds(self, "encoder.")
        weights = self.count_matrix_weights()
        if weights > MAX_WEIGHTS:
            raise UserError(f"encoder: these sizes have {weights:.1e} weights; the limit is {MAX_WEIGHTS:.0e}")
        if self.hidden_size % self.heads:
            raise UserError(f"encoder.heads: {self.heads} does not divide hidden_size {self.hidden_size}")
        if self.hidden_size % self.position_groups:
            raise UserError(
                f"encoder.position_groups: {self.position_groups} does not divide hidden_size {self.hidden_size}"
            )
        if self.position_kernel % 2:
            raise UserError(f"encoder.position_kernel: {self.position_kernel} is odd; it must be even")

    def count_matrix_weights(self) -> int:
        """Count the weights of all matrices and convolutions, which are nearly all weights, without building them."""
        convolutions = self.conv_channels * (KERNELS[0] + self.conv_channels * sum(KERNELS[1:]))
        projection = self.conv_channels * self.hidden_size
        position = self.hidden_size * (self.hidden_size // self.position_groups) * self.position_kernel
        layer = self.hidden_size * (4 * self.hidden_size + 2 * self.inner_size)
        return convolutions + projection + position + self.layers * layer


SIZES = tuple(name for name, kind in get_type_hints(EncoderConfig).items() if kind is int)
"""The fields that determine the shapes of the weights, and the number of heads. The others are rates and scales."""
