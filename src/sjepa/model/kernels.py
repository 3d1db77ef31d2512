"""The first layer as one GPU kernel: ten taps, shift and GELU, activations written once and never kept twice.

Its plain twin is `frontend.first_layer`, which runs everywhere else; `benchmarks/kernels.py` holds the two against
each other on a GPU. Both read the same weight: 16 rows an utterance, taps 0 to 9, the shift as row 10, then zeros.
"""
# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS_PER_PROGRAM = 2048  # of the backward pass: each program sums its rows' part of the weight gradient


@triton.jit
def windows_of(x, row, samples, rows):
    """(R, 16): the ten samples that each row sees, a one for the shift, zeros."""
    tap = tl.arange(0, 16)
    inside = (row[:, None] < rows) & (tap[None, :] < 10)
    window = tl.load(x + 5 * row[:, None] + tap[None, :], mask=inside, other=0.0)
    return tl.where(tap[None, :] == 10, 1.0, window)


@triton.jit
def forward_kernel(x, weight, out, samples, rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    utterance = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    window = windows_of(x + utterance * samples, row, samples, rows)
    tap = tl.arange(0, 16)
    w = tl.load(weight + (utterance * 16 + tap[:, None]) * CHANNELS + column[None, :])
    u = tl.dot(window, w, input_precision="tf32x3")
    y = 0.5 * u * (1.0 + tl.erf(u * 0.7071067811865476))
    place = out + (utterance * rows + row[:, None]) * CHANNELS + column[None, :]
    tl.store(place, y.to(out.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def backward_kernel(
    x, weight, gradient, partial, samples, rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    utterance = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tap = tl.arange(0, 16)
    w = tl.load(weight + (utterance * 16 + tap[:, None]) * CHANNELS + column[None, :])
    total = tl.zeros((16, COLUMNS), dtype=tl.float32)
    for start in range(0, SPAN, ROWS):
        row = tl.program_id(1) * SPAN + start + tl.arange(0, ROWS)
        window = windows_of(x + utterance * samples, row, samples, rows)
        u = tl.dot(window, w, input_precision="tf32x3")
        place = gradient + (utterance * rows + row[:, None]) * CHANNELS + column[None, :]
        g = tl.load(place, mask=row[:, None] < rows, other=0.0).to(tl.float32)
        slope = 0.5 * (1.0 + tl.erf(u * 0.7071067811865476)) + u * tl.exp(-0.5 * u * u) * 0.3989422804014327
        total += tl.dot(tl.trans(window), g * slope, input_precision="tf32x3")
    block = (utterance * tl.num_programs(1) + tl.program_id(1)) * 16 + tap[:, None]
    tl.store(partial + block * CHANNELS + column[None, :], total)


@torch.library.custom_op("sjepa::first_layer", mutates_args=())
def first_layer(x: Tensor, weight: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """GELU of windows of ten samples times the utterance's own weight: (B, N), (B, 16, C) -> (B, rows, C)."""
    batch, channels = x.shape[0], weight.shape[2]
    out = torch.empty(batch, rows, channels, dtype=dtype, device=x.device)
    columns = min(128, channels)
    grid = (channels // columns, triton.cdiv(rows, 64), batch)
    forward_kernel[grid](x, weight, out, x.shape[1], rows, channels, 64, columns, num_warps=4)
    return out


@first_layer.register_fake
def _(x: Tensor, weight: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape[0], rows, weight.shape[2], dtype=dtype, device=x.device)


@torch.library.custom_op("sjepa::first_layer_backward", mutates_args=())
def first_layer_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    batch, rows, channels = gradient.shape
    columns = min(64, channels)
    spans = triton.cdiv(rows, ROWS_PER_PROGRAM)
    partial = torch.empty(batch, spans, 16, channels, dtype=torch.float32, device=x.device)
    grid = (channels // columns, spans, batch)
    backward_kernel[grid](
        x, weight, gradient, partial, x.shape[1], rows, channels, 64, columns, ROWS_PER_PROGRAM, num_warps=4
    )
    return partial.sum(1)


@first_layer_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(weight)


def keep_inputs(context, inputs, output):
    x, weight, _, _ = inputs
    context.save_for_backward(x, weight)


def gradients(context, gradient):
    x, weight = context.saved_tensors
    return None, first_layer_backward(gradient.contiguous(), x, weight), None, None


first_layer.register_autograd(gradients, setup_context=keep_inputs)
