"""How a step runs: precision, compilation and streams."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sjepa.config import Config
from sjepa.device import cuda_stream
from sjepa.model.encoder import EncoderNetwork
from sjepa.model.gpu_support import has_bf16, kernels_work
from sjepa.torch_private import disable_padded_buffers, raise_recompile_limit, silence_compiler, start_compile_workers


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """Return the autocast context of training."""
    enabled = config.train.precision == "bf16" and device.type == "cuda" and has_bf16()
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def should_compile(config: Config, device: torch.device) -> bool:
    """Return whether training compiles its networks: only on a GPU that supports it."""
    return config.train.compile and device.type == "cuda" and kernels_work()


def compile_parts(encoder: EncoderNetwork) -> None:
    """Compile the encoder part by part, so that LayerDrop and changes of the active layer need no recompilation."""
    kernels_work()  # must be known before the compiler traces the network
    raise_recompile_limit(64)
    disable_padded_buffers()
    silence_compiler()
    start_compile_workers()
    for part in (encoder.feature_extractor, encoder.feature_projection, encoder.encoder, *encoder.encoder.layers):
        part.compile(dynamic=False)


class SideStream:
    """A second CUDA stream, for work that runs in parallel with the step until `join`."""

    def __init__(self, device: torch.device):
        self.stream = cuda_stream("targets", device) if device.type == "cuda" else None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.stream is None:
            yield
        else:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                yield

    def join(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
