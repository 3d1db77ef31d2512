"""How a step is computed: precision and compilation, decided in one place."""

import torch
from torch import nn

from sjepa.config import Config
from sjepa.model.encoder import Encoder


def autocast(config: Config, device: torch.device) -> torch.autocast:
    enabled = config.train.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def compiles(config: Config, device: torch.device) -> bool:
    return config.train.compile and device.type == "cuda"


def compile_parts(encoder: Encoder, *others: nn.Module) -> None:
    """Compile part by part: LayerDrop and the active layer then choose among compiled layers without recompiling."""
    torch._dynamo.config.recompile_limit = 64  # one for each bucket's shape and mode
    stack = encoder.encoder
    for part in (encoder.feature_extractor, encoder.feature_projection, stack.pos_conv_embed, *stack.layers, *others):
        part.compile(dynamic=False)
