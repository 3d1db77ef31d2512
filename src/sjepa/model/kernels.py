"""GPU kernels for the operations that a compiler leaves slow: the first layer, and GELU with dropout.

Each kernel has a plain PyTorch equivalent for other devices. `frontend.first_layer` and `transformer.gelu_dropout`
choose between the two. `benchmarks/gpu_kernels.py` compares them on a GPU.
"""
# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def cdf_and_exp(u):
    """Return Phi(u) and exp(-u^2 / 2), as `activation.cdf_and_exp`."""
    bell = tl.exp(-0.5 * u * u)
    t = 1.0 / (1.0 + 0.2316418881 * tl.abs(u))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))) * bell
    return tl.where(u < 0, tail, 1.0 - tail), bell


@triton.jit
def gelu(u):
    cdf, _ = cdf_and_exp(u)
    return u * cdf


@triton.jit
def gelu_slope(u):
    cdf, bell = cdf_and_exp(u)
    return cdf + u * bell * 0.3989422804014327


# ---- The first layer. Its weight has 16 rows per utterance: taps 0 to 9, the shift as row 10, then zeros.

# Rows and channels per tile, warps, and rows per program: the fastest combination tried on an H200.
FORWARD_TILE = (64, 128, 4, 1024)
BACKWARD_TILE = (32, 128, 4, 1024)


@triton.jit
def load_windows(x, row, rows):
    """Load (R, 16): the ten samples of each row's window, a one for the shift, and zeros."""
    tap = tl.arange(0, 16)
    inside = (row[:, None] < rows) & (tap[None, :] < 10)
    window = tl.load(x + 5 * row[:, None] + tap[None, :], mask=inside, other=0.0)
    return tl.where(tap[None, :] == 10, 1.0, window)


@triton.jit
def first_layer_forward(
    x, weight, out, samples, rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    utterance = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    w = tl.load(weight + (utterance * 16 + tl.arange(0, 16)[:, None]) * CHANNELS + column[None, :])
    for start in range(0, SPAN, ROWS):
        row = tl.program_id(1) * SPAN + start + tl.arange(0, ROWS)
        u = tl.dot(load_windows(x + utterance * samples, row, rows), w, input_precision=PRECISION)
        place = out + (utterance * rows + row[:, None]) * CHANNELS + column[None, :]
        tl.store(place, gelu(u).to(out.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def first_layer_weight_gradient(
    x, weight, gradient, partial, samples, rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    utterance = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tap = tl.arange(0, 16)[:, None]
    w = tl.load(weight + (utterance * 16 + tap) * CHANNELS + column[None, :])
    total = tl.zeros((16, COLUMNS), dtype=tl.float32)
    for start in range(0, SPAN, ROWS):
        row = tl.program_id(1) * SPAN + start + tl.arange(0, ROWS)
        window = load_windows(x + utterance * samples, row, rows)
        u = tl.dot(window, w, input_precision=PRECISION)
        place = gradient + (utterance * rows + row[:, None]) * CHANNELS + column[None, :]
        g = gelu_slope(u) * tl.load(place, mask=row[:, None] < rows, other=0.0).to(tl.float32)
        total += tl.dot(tl.trans(window), g, input_precision=PRECISION)
    block = (utterance * tl.num_programs(1) + tl.program_id(1)) * 16 + tap
    tl.store(partial + block * CHANNELS + column[None, :], total)


def input_precision(dtype: torch.dtype) -> str:
    """Return Triton's input precision. TF32 is enough for activations stored in bf16."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


@torch.library.custom_op("sjepa::first_layer", mutates_args=())
def first_layer(x: Tensor, weight: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Apply the utterance's weight and GELU to windows of ten samples: (B, N), (B, 16, C) -> (B, rows, C)."""
    batch, channels = x.shape[0], weight.shape[2]
    out = torch.empty(batch, rows, channels, dtype=dtype, device=x.device)
    tile, columns, warps, span = FORWARD_TILE
    columns = min(columns, channels)
    first_layer_forward[(channels // columns, triton.cdiv(rows, span), batch)](
        x, weight, out, x.shape[1], rows, channels, tile, columns, span, input_precision(dtype), num_warps=warps
    )
    return out


@first_layer.register_fake
def _(x: Tensor, weight: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape[0], rows, weight.shape[2], dtype=dtype, device=x.device)


@torch.library.custom_op("sjepa::first_layer_backward", mutates_args=())
def first_layer_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    batch, rows, channels = gradient.shape
    tile, columns, warps, span = BACKWARD_TILE
    columns = min(columns, channels)
    partial = torch.empty(batch, triton.cdiv(rows, span), 16, channels, dtype=torch.float32, device=x.device)
    first_layer_weight_gradient[(channels // columns, partial.shape[1], batch)](
        x, weight, gradient, partial, x.shape[1], rows, channels, tile, columns, span, input_precision(gradient.dtype),
        num_warps=warps,
    )  # fmt: skip
    return partial.sum(1)


@first_layer_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(weight)


def save_first_layer_inputs(ctx, inputs, output):
    x, weight, _, _ = inputs
    ctx.save_for_backward(x, weight)


def backpropagate_first_layer(ctx, gradient):
    x, weight = ctx.saved_tensors
    return None, first_layer_backward(gradient.contiguous(), x, weight), None, None


first_layer.register_autograd(backpropagate_first_layer, setup_context=save_first_layer_inputs)


# ---- GELU and dropout. One Philox call serves eight elements. The backward pass draws the same mask again.

BLOCK = 4096


@triton.jit
def draw_mask(seed, index, threshold, EIGHTHS: tl.constexpr):
    """Draw an (N, 8) mask that is True for elements to keep, from 16 random bits each."""
    a, b, c, d = tl.randint4x(seed, index)
    bits = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (EIGHTHS, 4)).to(tl.uint32, bitcast=True)
    sixteen = tl.reshape(tl.join(bits & 0xFFFF, bits >> 16), (EIGHTHS, 8))
    return sixteen >= threshold


@triton.jit
def gelu_dropout_kernel(x, gradient, out, seed, size, threshold, scale, BACKWARD: tl.constexpr, EIGHTHS: tl.constexpr):
    index = tl.program_id(0) * EIGHTHS + tl.arange(0, EIGHTHS)
    place = index.to(tl.int64)[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = place < size
    u = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if BACKWARD:
        value = gelu_slope(u) * tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    else:
        value = gelu(u)
    value = tl.where(draw_mask(tl.load(seed), index, threshold, EIGHTHS), value * scale, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


def launch(x: Tensor, gradient: Tensor | None, seed: Tensor, p: float) -> Tensor:
    out = torch.empty_like(x)
    threshold = round(p * 65536)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    gelu_dropout_kernel[grid](
        x, gradient, out, seed, x.numel(), threshold, 65536 / (65536 - threshold), gradient is not None, BLOCK // 8
    )
    return out


@torch.library.custom_op("sjepa::gelu_dropout", mutates_args=())
def gelu_dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """Compute dropout(gelu(x)). `seed`, one integer on the device, determines the mask."""
    return launch(x.contiguous(), None, seed, p)


@gelu_dropout.register_fake
def _(x: Tensor, seed: Tensor, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("sjepa::gelu_dropout_backward", mutates_args=())
def gelu_dropout_backward(gradient: Tensor, x: Tensor, seed: Tensor, p: float) -> Tensor:
    return launch(x.contiguous(), gradient.contiguous(), seed, p)


@gelu_dropout_backward.register_fake
def _(gradient: Tensor, x: Tensor, seed: Tensor, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def save_gelu_dropout_inputs(ctx, inputs, output):
    x, seed, ctx.p = inputs
    ctx.save_for_backward(x, seed)


def backpropagate_gelu_dropout(ctx, gradient):
    x, seed = ctx.saved_tensors
    return gelu_dropout_backward(gradient, x, seed, ctx.p), None, None


gelu_dropout.register_autograd(backpropagate_gelu_dropout, setup_context=save_gelu_dropout_inputs)
