"""The frozen encoder, and the run's cluster head where units or posteriors are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sjepa.embed.loudness import Moments, norm_for
from sjepa.errors import UserError
from sjepa.evaluate.upstream import ARCHITECTURES
from sjepa.model.encoder import Encoder
from sjepa.model.formats import OtherNetworkError
from sjepa.model.predictor import ClusterHead
from sjepa.model.utterances import encode
from sjepa.runs.steps import encoder_at


@dataclass(frozen=True)
class Network:
    encoder: Encoder
    state: int
    """Which hidden state is taken: 0 is the input of layer 0, then each layer's output."""
    head: ClusterHead | None
    device: torch.device

    @torch.inference_mode()
    def features(self, waveforms: Sequence[np.ndarray]) -> list[Tensor]:
        """The state's frames (T, D) of each waveform; none depends on the others."""
        return encode(self.encoder, waveforms, self.device, itemgetter(self.state), until=self.state - 1)

    @torch.inference_mode()
    def window_features(self, samples: np.ndarray, recording: Moments) -> Tensor:
        """The state's frames (T, D) of a window, computed as part of its recording."""
        waveform = torch.from_numpy(samples)[None].to(self.device)
        norm = norm_for(self.encoder, waveform, recording)
        output = torch.func.functional_call(self.encoder, norm, (waveform,), {"until": self.state - 1})
        return cast(Tensor, output.hidden_states[self.state][0])

    @torch.inference_mode()
    def posteriors(self, features: Tensor) -> Tensor:  # (T, D) -> (T, K)
        assert self.head is not None
        return self.head(features).softmax(-1)


def load_encoder(source: Path, step: int | None = None) -> Encoder:
    """An encoder by path, or that of a run's checkpoint; of another network, what takes it."""
    if step is not None:
        return encoder_at(source, step).requires_grad_(False)
    try:
        return Encoder.from_pretrained(source).requires_grad_(False)
    except OtherNetworkError as error:
        others = ", which superb, probe and units accept and embed does not" if error.kind in ARCHITECTURES else ""
        raise UserError(
            f"{error.folder} holds a {error.kind!r} network{others}: embed takes sjepa's own encoders, "
            "and HuBERT Base or what is built like it"
        ) from error


def chosen_state(layer: str, layers: int) -> int:
    """Index of the hidden state that `--layer` names."""
    if layer == "last":
        return layers
    if layer == "input":
        return 0
    if layer.isdigit() and int(layer) < layers:
        return int(layer) + 1
    raise UserError(f"--layer {layer}: the encoder has layers 0 to {layers - 1}; also input (of layer 0) and last")
