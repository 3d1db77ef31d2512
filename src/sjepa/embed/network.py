"""The frozen encoder, with its mixture or cluster head if posteriors or units are requested."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sjepa.errors import UserError
from sjepa.evaluate.upstream import WHISPER, is_only_evaluated
from sjepa.model.formats import ARCHITECTURES, OtherNetworkError
from sjepa.model.frontend import Moments
from sjepa.model.utterances import encode
from sjepa.runs.encoder import Encoder
from sjepa.runs.steps import load_encoder

ALL_LAYERS = "all"
Reader = Literal["layers", "mixture", "head"]
ACCEPTED = "embed accepts sjepa's own encoders, and networks with the architecture of HuBERT Base"


@dataclass(frozen=True)
class Network:
    """An encoder and what reads its frames."""

    encoder: Encoder
    states: tuple[int, ...]
    """Hidden states to concatenate: 0 is the input of layer 0, 1 the output of layer 0, and so on."""
    device: torch.device
    reader: Reader = "layers"
    """What reads the frames: nothing (layers), the mixture, or the cluster head."""

    def select_states(self, hidden_states: Sequence[Tensor]) -> Tensor:
        chosen = [hidden_states[state] for state in self.states]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)

    @property
    def until(self) -> int:
        """The last layer that has to be computed."""
        return max(self.states) - 1

    @torch.inference_mode()
    def features(self, waveforms: Sequence[np.ndarray]) -> list[Tensor]:
        """Frames (T, D) of each waveform. Batching does not change the result."""
        encoded: Sequence[Tensor | None] = [None] * len(waveforms)
        if self.states:
            encoded = encode(self.encoder, waveforms, self.device, self.select_states, until=self.until)
        return [self.frames(torch.from_numpy(w), x) for w, x in zip(waveforms, encoded, strict=True)]

    @torch.inference_mode()
    def window_features(self, samples: np.ndarray, recording: Moments) -> Tensor:
        """Frames (T, D) of a window, normalised with the moments of its recording."""
        waveform = torch.from_numpy(samples)
        if not self.states:
            return self.frames(waveform, None)
        moments = Moments(*(moment.to(self.device) for moment in recording))
        convolved = self.encoder.convolve(waveform[None].to(self.device), moments=moments)
        hidden_states = self.encoder.transform(convolved, until=self.until).hidden_states
        return self.frames(waveform, self.select_states(hidden_states)[0])

    def frames(self, samples: Tensor, selected: Tensor | None) -> Tensor:
        """The selected states; for the mixture, the features that it was fitted on."""
        if self.reader == "mixture":
            return self.encoder.clusters.mixture_features(samples.to(self.device), selected)
        assert selected is not None
        return selected

    @torch.inference_mode()
    def posteriors(self, frames: Tensor) -> Tensor:  # (T, D) -> (T, K)
        clusters = self.encoder.clusters
        return clusters.mixture_posteriors(frames) if self.reader == "mixture" else clusters.head_posteriors(frames)

    @torch.inference_mode()
    def units(self, frames: Tensor) -> Tensor:  # (T, D) -> (T,)
        if self.reader == "mixture":
            return self.encoder.clusters.mixture_units(frames)
        return self.posteriors(frames).argmax(-1)


def make_network(encoder: Encoder, reader: Reader, layer: str, device: torch.device) -> Network:
    """Combine an encoder with a reader: choose the hidden states that the reader needs."""
    layers = encoder.config.layers
    encoder = encoder.to(device)
    if reader == "layers":
        states = tuple(range(layers + 1)) if layer == ALL_LAYERS else (state_index(layer, layers),)
    elif reader == "mixture":
        state = encoder.clusters.hidden_state_index
        states = () if state is None else (state,)
    else:
        states = (layers,)
        encoder.clusters.head_posteriors(
            torch.zeros(1, encoder.config.hidden_size, device=device)
        )  # refuse now if there is no head
    return Network(encoder, states, device, reader)


def load_frozen_encoder(source: Path, step: int | None = None) -> Encoder:
    """Load an encoder without gradients. The error for another network names the commands that accept it."""
    if is_only_evaluated(str(source)):
        raise UserError(f"only superb, probe, units and cost accept {source}: {ACCEPTED}")
    try:
        return load_encoder(source, step).requires_grad_(False)
    except OtherNetworkError as error:
        known = error.kind in (*ARCHITECTURES, WHISPER)
        others = ", which only superb, probe, units and cost accept" if known else ""
        raise UserError(f"{error.folder} holds a {error.kind!r} network{others}: {ACCEPTED}") from error


def state_index(layer: str, layers: int) -> int:
    """Index of the hidden state for a value of `--layer`."""
    if layer == "last":
        return layers
    if layer == "input":
        return 0
    if layer.isdigit() and int(layer) < layers:
        return int(layer) + 1
    raise UserError(
        f"--layer {layer}: the encoder has layers 0 to {layers - 1}; also input (of layer 0), last and {ALL_LAYERS}"
    )
