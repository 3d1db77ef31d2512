"""Timing with device events, and the operation count of the encoder."""

import time
from collections.abc import Callable

import torch

from sjepa.audio.frames import frame_count
from sjepa.model.encoder_config import KERNELS, STRIDES, EncoderConfig


def time_call(work: Callable[[], object], device: torch.device, repeats: int = 20, warmup: int = 5) -> float:
    """Return the mean milliseconds per call after a warm-up. On a GPU, two events enclose all calls."""
    for _ in range(warmup):
        work()
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - began) / repeats * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / repeats


def capture_graph(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Capture the work as one CUDA graph, as training does. On a CPU, return the work unchanged."""
    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def measure_matmul_rate(device: torch.device) -> float:
    """Return the FLOP/s of a large matrix product: bf16 on a GPU, fp32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / (time_call(lambda: a @ b, device, 10, 3) / 1e3)


def count_operations(config: EncoderConfig, samples: int) -> float:
    """Count the floating-point operations of one utterance's forward pass."""
    total, length, channels = 0.0, samples, 1
    for kernel, stride in zip(KERNELS, STRIDES, strict=True):
        length = (length - kernel) // stride + 1
        total += 2.0 * length * kernel * channels * config.conv_channels
        channels = config.conv_channels
    frames, hidden = frame_count(samples), config.hidden_size
    total += 2.0 * frames * channels * hidden
    total += 2.0 * frames * hidden * (hidden // config.position_groups) * config.position_kernel
    layer = 2.0 * frames * (4 * hidden**2 + 2 * hidden * config.inner_size) + 4.0 * frames**2 * hidden
    return total + config.layers * layer
