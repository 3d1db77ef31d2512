"""External networks as encoders: upstreams of s3prl, or networks from a user's function."""

import bisect
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.audio.io import SAMPLE_RATE, one_line
from sjepa.errors import UserError
from sjepa.model.named import UNTRAINED

S3PRL = "s3prl:"
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
Call = Callable[[Tensor], Sequence[Tensor]]
"""Maps waveforms of equal length (B, N) to hidden states, each (B, T, D)."""


class AdaptedNetwork:
    """A network with its number of states, width, frame stride and centre of the first frame."""

    def __init__(
        self,
        source: str,
        call: Call,
        network: nn.Module | None,
        stride: float | None,
        centre: float | None,
        code: str = "",
    ):
        self.source, self.call, self.network, self.code = source, call, network, code
        states = self.try_out(SAMPLE_RATE)
        self.states, self.dimension = len(states), states[0].shape[-1]
        self.stride = float(stride) if stride is not None else self.measure_stride()
        self.centre = float(centre) if centre is not None else self.stride / 2

    def count_frames(self, samples: int) -> int:
        return self.try_out(samples)[0].shape[1]

    def measure_stride(self) -> float:
        """Return the samples between frames, from the fewest samples that give as many frames as 2 s and as 4 s do."""
        lengths = 2 * SAMPLE_RATE, 4 * SAMPLE_RATE
        short, long = map(self.count_frames, lengths)
        if long - short < 2:
            raise UserError(f"{self.source}: it gives less than one frame per second; set its `stride`")
        reach = 2 * (lengths[1] - lengths[0]) // (long - short)
        first, last = (
            n - reach + bisect.bisect_left(range(n - reach, n), frames, key=self.count_frames)
            for n, frames in zip(lengths, (short, long), strict=True)
        )
        return (last - first) / (long - short)

    def try_out(self, samples: int) -> list[Tensor]:
        """Return the hidden states of noise, after checking their shapes."""
        device = next(self.network.parameters(), torch.empty(0)).device if self.network is not None else "cpu"
        noise = torch.randn(1, samples, generator=torch.Generator().manual_seed(0)) / 100
        try:
            with torch.inference_mode():
                states = list_states(self.call(noise.to(device)))
        except Exception as error:  # the user's code may raise anything
            seconds = samples / SAMPLE_RATE
            raise UserError(
                f"{self.source}: the network fails on {seconds:.3g} s of noise ({one_line(error)})"
            ) from error
        shapes = {tuple(state.shape) for state in states}
        if len(shapes) != 1 or len(next(iter(shapes))) != 3 or next(iter(shapes))[0] != 1:
            found = ", ".join(map(str, sorted(shapes))) or "nothing"
            raise UserError(
                f"{self.source}: hidden states of 1 waveform have the shapes {found}; each should be (1, frames, width)"
            )
        return states


def list_states(found: Any) -> list[Tensor]:
    """Convert the output of a network to a list of hidden states. A single tensor is one state."""
    if isinstance(found, dict):
        found = found["hidden_states"]
    found = getattr(found, "hidden_states", found)
    return [found] if isinstance(found, Tensor) else list(found)


def run_by_length(
    utterances: Sequence[np.ndarray], device: torch.device, states: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return the states (S, T, D) of each utterance.

    A batch holds utterances of equal length, because padding changes the output of most networks.
    """
    found: dict[int, Tensor] = {}
    order = sorted(range(len(utterances)), key=lambda i: len(utterances[i]))
    for _, group in itertools.groupby(order, key=lambda i: len(utterances[i])):
        members = list(group)
        waveforms = torch.from_numpy(np.stack([utterances[i] for i in members])).to(device)
        found.update(zip(members, states(waveforms), strict=True))
    return [found[index] for index in range(len(utterances))]


def is_function(source: str) -> bool:
    """Return whether an encoder is given as `module:function`."""
    return bool(FUNCTION.fullmatch(source)) and not source.startswith(UNTRAINED) and not Path(source).exists()


def load_function(source: str, device: torch.device) -> AdaptedNetwork:
    """Load the network that a user's function returns. The module may be in the working directory."""
    name, _, function = source.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
        made = getattr(module, function)()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"--encoder {source}: cannot be loaded ({one_line(error)}); expected MODULE:FUNCTION"
        ) from error
    if not callable(made):
        raise UserError(f"--encoder {source}: the function returns {type(made).__name__}, which is not callable")
    network = freeze(made, device) if isinstance(made, nn.Module) else None
    try:
        code = inspect.getsource(module)
    except OSError:  # a compiled module
        code = ""
    return AdaptedNetwork(source, made, network, getattr(made, "stride", None), getattr(made, "centre", None), code)


def load_s3prl(source: str, device: torch.device) -> AdaptedNetwork:
    """Load an upstream of s3prl by name. s3prl may download its weights."""
    try:
        hub = importlib.import_module("s3prl.hub")
    except ImportError as error:
        raise UserError(f"--encoder {source} needs s3prl: pip install s3prl") from error
    name = source.removeprefix(S3PRL)
    if not hasattr(hub, name):
        raise UserError(f"--encoder {source}: s3prl has no upstream {name!r}")
    network = freeze(getattr(hub, name)(), device)
    downsampling: Any = getattr(network, "get_downsample_rates", None)
    rate = downsampling("hidden_states") if downsampling is not None else None
    return AdaptedNetwork(source, lambda waveforms: network(list(waveforms)), network, rate, None)


def freeze(network: nn.Module, device: torch.device) -> nn.Module:
    return network.to(device).eval().requires_grad_(False)
