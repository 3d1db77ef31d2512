"""Cost of an encoder: parameters, multiply-accumulate operations, and latency on a CPU."""

import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.upstream import Upstream, describe_encoder
from sjepa.runs.encoder import Encoder
from sjepa.speed.timing import count_operations
from sjepa.torch_private import cpu_attention

WARMUP = 1


def count_product_flops(_: Any, a: Sequence[int], b: Sequence[int], **__: Any) -> int:
    """Count the operations of an in-place matrix product from its shapes."""
    return 2 * a[0] * a[1] * b[1]


def count_attention_flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """Count the operations of attention on a CPU, from the shapes of queries, keys and values (B, H, T, D)."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


# Operations that torch's counter does not support.
EXTRA_OPERATIONS = {torch.ops.aten.addmm_: count_product_flops, cpu_attention(): count_attention_flops}


def make_noise(seconds: float) -> np.ndarray:
    generator = np.random.default_rng(0)
    return (0.05 * generator.standard_normal(round(seconds * SAMPLE_RATE))).astype(np.float32)


def count_macs(upstream: Upstream, seconds: float) -> float | None:
    """Return multiply-accumulates per second of audio, or None without a network.

    Only matrix products and convolutions count. Our encoder is counted by its architecture, because on a CPU it
    computes its widest convolution in fewer operations than a direct convolution needs.
    """
    if upstream.network is None:
        return None
    samples = make_noise(seconds)
    if isinstance(upstream.network, Encoder):
        return count_operations(upstream.network.config, len(samples)) / 2 / seconds
    with FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter:
        upstream.extract([samples])
    return counter.get_total_flops() / 2 / seconds


def measure_latency(upstream: Upstream, seconds: float, repeats: int, threads: int) -> float:
    """Return the median milliseconds from one waveform to all hidden states."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        samples, taken = make_noise(seconds), []
        for _ in range(WARMUP + repeats):
            began = time.perf_counter()
            upstream.extract([samples])
            taken.append(1e3 * (time.perf_counter() - began))
    finally:
        torch.set_num_threads(before)
    return statistics.median(taken[WARMUP:])


def measure_cost(upstream: Upstream, seconds: float, repeats: int, threads: int) -> dict[str, Any]:
    """Measure the contents of `cost.json`. The encoder must be on the CPU."""
    if upstream.device.type != "cpu":
        raise UserError("latency is measured on a CPU")
    return {
        "encoder": describe_encoder(upstream),
        "macs_per_second": count_macs(upstream, seconds),
        "cpu_ms": measure_latency(upstream, seconds, repeats, threads),
        "seconds": seconds,
        "threads": threads,
        "repeats": repeats,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }
