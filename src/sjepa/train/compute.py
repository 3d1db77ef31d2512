"""How a step is computed: precision, compilation and streams, decided in one place."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sjepa.config import Config
from sjepa.model.abilities import has_bf16, kernels_work
from sjepa.model.encoder import EncoderNetwork
from sjepa.torch_private import disable_padded_buffers, raise_recompile_limit


def autocast(config: Config, device: torch.device) -> torch.autocast:
    enabled = config.train.precision == "bf16" and device.type == "cuda" and has_bf16()
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def compiles(config: Config, device: torch.device) -> bool:
    return config.train.compile and device.type == "cuda" and kernels_work()


def compile_parts(encoder: EncoderNetwork) -> None:
    """Compile part by part: LayerDrop and the active layer then choose among compiled layers without recompiling."""
    kernels_work()  # known before the compiler asks
    raise_recompile_limit(64)
    disable_padded_buffers()
    for part in (encoder.feature_extractor, encoder.feature_projection, encoder.encoder, *encoder.encoder.layers):
        part.compile(dynamic=False)


class SideStream:
    """A second stream on a GPU, for work that the stream of the step need not wait for until it joins."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

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
