"""The encoder f: raw waveform in, hidden states out. The only part that is kept after pre-training."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from sjepa.errors import UserError
from sjepa.model import formats
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.frontend import RECEPTIVE_FIELD, FeatureExtractor, Moments, frame_count, frame_counts
from sjepa.model.named import resolve_encoder
from sjepa.model.position import HALVES, ConvPosition
from sjepa.model.stream import FeatureStream, StreamConfig
from sjepa.model.transformer import LayerNorm, TransformerLayer, TransformerStack

if TYPE_CHECKING:
    from sjepa.targets.clusters import Clusters

From = Literal["mixture", "head"]
"""What units and posteriors are of: the mixture, or the cluster head."""


class EncoderOutput(NamedTuple):
    hidden_states: list[Tensor]
    """Input of layer 0, then the output of each layer: layer l's output is `hidden_states[l + 1]`, each (B, T, D)."""
    frames: Tensor | None
    """Frames of each utterance where lengths were given; later frames are padding."""

    @property
    def last(self) -> Tensor:
        return self.hidden_states[-1]


class ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


class FeatureProjection(nn.Module):
    def __init__(self, channels: int, hidden_size: int, dropout: float):
        super().__init__()
        self.layer_norm = LayerNorm(channels)
        self.projection = nn.Linear(channels, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.projection(self.layer_norm(x)))


class Encoder(nn.Module):
    """A speech encoder with HuBERT's architecture at the size of `config`; weights carry Hugging Face's names.

    >>> from sjepa import Encoder
    >>> encoder = Encoder.from_pretrained("runs/mine")
    >>> encoder(torch.zeros(1, 16_000)).last.shape  # waveforms at 16 kHz to 50 frames per second
    torch.Size([1, 49, 32])
    """

    def __init__(self, config: EncoderConfig | None = None):
        super().__init__()
        self.source: Path | None = None
        # In a list, so that torch does not take the clusters for a part of the network.
        self.held_clusters: list[Clusters] = []
        self.config = config = config or EncoderConfig()
        self.feature_extractor = FeatureExtractor(config.conv_channels)
        self.feature_projection = FeatureProjection(config.conv_channels, config.hidden_size, config.dropout)
        layers = [
            TransformerLayer(
                config.hidden_size,
                config.heads,
                config.inner_size,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                activation_dropout=config.activation_dropout,
            )
            for _ in range(config.layers)
        ]
        position = ConvPosition(config.hidden_size, config.position_kernel, config.position_groups)
        self.encoder = TransformerStack(position, config.hidden_size, config.dropout, layers)
        self.apply(init_linear)
        if config.attention_start:
            for layer in layers:
                layer.attention.share_queries_and_keys(config.attention_start)

    def forward(
        self,
        waveforms: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        keep: Sequence[bool] | None = None,
        until: int | None = None,
    ) -> EncoderOutput:
        """Hidden states of 16 kHz waveforms (B, N).

        `lengths` are samples per utterance of a padded batch; `mask` (B, T) is True at frames that are hidden from the
        transformer; `keep` says which layers run (LayerDrop); `until` is the last layer that is needed.
        """
        return self.transform(self.convolve(waveforms, lengths), lengths, mask=mask, keep=keep, until=until)

    def convolve(self, waveforms: Tensor, lengths: Tensor | None = None, moments: Moments | None = None) -> Tensor:
        """The front end's features (B, T, C); gradients that flow back into it are scaled.

        With `moments`, waveforms are normalised as parts of a recording with these statistics.
        """
        if waveforms.dim() != 2:
            raise UserError(f"waveforms should be (batch, samples), not {tuple(waveforms.shape)}")
        if waveforms.shape[1] < RECEPTIVE_FIELD:
            raise UserError(f"{waveforms.shape[1]} samples are too few: the encoder needs {RECEPTIVE_FIELD} (25 ms)")
        features: Tensor = self.feature_extractor(waveforms, lengths, moments)
        if self.training and features.requires_grad:
            features = ScaleGradient.apply(features, self.config.feature_gradient_scale)
        return features

    def transform(
        self,
        features: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        keep: Sequence[bool] | None = None,
        until: int | None = None,
    ) -> EncoderOutput:
        """Hidden states of the front end's features; see `forward`."""
        x = self.feature_projection(features)
        frames = key_mask = None
        if lengths is not None:
            frames = frame_counts(lengths)
            inside = torch.arange(x.shape[1], device=x.device) < frames[:, None]
            x = x * inside.unsqueeze(2)
            key_mask = inside[:, None, None, :]
        x = self.encoder(x, mask)
        hidden_states = [x]
        needed = self.config.layers if until is None else until + 1
        for index, layer in enumerate(self.encoder.layers[:needed]):
            if keep is None or keep[index]:
                x = layer(x, key_mask)
            hidden_states.append(x)
        return EncoderOutput(hidden_states, frames)

    def stream(
        self, chunk: float = 1.28, look_ahead: float = 0.64, context: float = 2.0, layer: int | None = None
    ) -> FeatureStream:
        """Features of a live stream at 16 kHz, in chunks: of a layer from 0, or of the last one. Times are in seconds.

        A frame sees `context` before its chunk and `look_ahead` after it. It comes out at most `chunk` + `look_ahead`
        after its audio, plus the time to compute. `model/stream.py` says what differs from the whole recording.

        >>> import numpy as np
        >>> from sjepa import Encoder
        >>> stream = Encoder.from_pretrained("runs/mine").stream(chunk=0.5, look_ahead=0.25)
        >>> [len(frames) for frames in stream.feed(np.zeros((4, 8_000), np.float32))]  # four blocks of half a second
        [25, 25, 25, 24]
        """
        last = self.config.layers - 1
        if layer is not None and not 0 <= layer <= last:
            raise UserError(f"layer {layer}: the encoder has layers 0 to {last}")
        return FeatureStream(self, StreamConfig(chunk, look_ahead, context), ((last if layer is None else layer) + 1,))

    @property
    def clusters(self) -> "Clusters":
        """The mixture and the cluster head that were trained with this encoder, on the encoder's device."""
        if not self.held_clusters:
            if self.source is None:
                raise UserError(
                    "this encoder has no mixture and no cluster head: load one with Encoder.from_pretrained"
                )
            from sjepa.runs.heads import load_clusters

            self.held_clusters = [load_clusters(self.source, self)]
        return self.held_clusters[0].to(next(self.parameters()).device)

    @torch.inference_mode()
    def posteriors(self, waveforms: Tensor, lengths: Tensor | None = None, temperature: float = 1.0) -> Tensor:
        """Posteriors (B, T, K) of the mixture for waveforms (B, N), in the space and layer it was fitted on.

        The targets of training are those at `encoder.clusters.info.temperature`. Frames beyond an utterance's length
        are 0.
        """
        clusters = self.clusters
        return pad([clusters.mixture_posteriors(x, temperature) for x in self.mixture_space(waveforms, lengths)])

    @torch.inference_mode()
    def head_posteriors(self, waveforms: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The cluster head's distributions (B, T, K) on the last layer; frames beyond an utterance's length are 0."""
        clusters = self.clusters
        return pad([clusters.head_posteriors(x) for x in self.utterance_states(waveforms, lengths, -1)])

    @torch.inference_mode()
    def units(self, waveforms: Tensor, lengths: Tensor | None = None, source: From = "head") -> Tensor:
        """The most likely component (B, T) at each frame, by the head or the mixture; -1 beyond an utterance's length.

        >>> from sjepa import Encoder
        >>> Encoder.from_pretrained("runs/mine").units(torch.zeros(1, 16_000), source="mixture").shape
        torch.Size([1, 49])
        """
        clusters = self.clusters
        if source == "mixture":
            return pad([clusters.mixture_units(x) for x in self.mixture_space(waveforms, lengths)], -1)
        states = self.utterance_states(waveforms, lengths, -1)
        return pad([clusters.head_posteriors(x).argmax(-1) for x in states], -1)

    def mixture_space(self, waveforms: Tensor, lengths: Tensor | None) -> list[Tensor]:
        """Features (T, D) of each utterance that the mixture was fitted on."""
        clusters = self.clusters
        counts = [waveforms.shape[1]] * len(waveforms) if lengths is None else lengths.tolist()
        utterances = [samples[:count] for samples, count in zip(waveforms, counts, strict=True)]
        if clusters.state is None:
            return [clusters.space(samples, None) for samples in utterances]
        states = self.utterance_states(waveforms, lengths, clusters.state)
        return [clusters.space(samples, x) for samples, x in zip(utterances, states, strict=True)]

    def utterance_states(self, waveforms: Tensor, lengths: Tensor | None, state: int) -> list[Tensor]:
        """A hidden state (T, D) of each utterance, without padding."""
        output = self(waveforms, lengths, until=None if state < 0 else state - 1)
        if lengths is None:
            return list(output.hidden_states[state])
        counts = [frame_count(count) for count in lengths.tolist()]
        return [x[:count] for x, count in zip(output.hidden_states[state], counts, strict=True)]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `from_pretrained` and Hugging Face's AutoModel load, in the precision of the weights.

        The mixture and the cluster head go with it, if the encoder has them.
        """
        formats.save_folder(Path(folder), self.state_dict(), formats.to_hugging_face(self.config))
        if self.held_clusters:
            half = next(self.parameters()).dtype in HALVES
            file = Path(folder) / formats.CLUSTERS_FILE
            self.held_clusters[0].save(file, encoder=formats.fingerprint(self), half=half)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Encoder":
        """Load the encoder of a run or folder, a Hugging Face HuBERT, a file of weights, or a shipped encoder by name.

        Files of weights may have the names of Hugging Face, fairseq or torchaudio. Weights are in fp32 and the encoder
        is in evaluation mode.
        """
        source = resolve_encoder(path)
        weights, fields = formats.read_encoder(source)
        encoder = cls(EncoderConfig(**fields))
        formats.load_strictly(encoder, weights, str(path))
        encoder.source = source
        encoder.take_clusters(formats.encoder_folder(source) / formats.CLUSTERS_FILE)
        return encoder.eval()

    def take_clusters(self, file: Path) -> None:
        """Load the mixture and the head of these weights; a fault is reported when they are asked for."""
        if file.is_file():
            from sjepa.runs.heads import read_own_clusters

            with suppress(UserError):
                self.held_clusters = [read_own_clusters(file, self)]


def pad(utterances: list[Tensor], value: float = 0.0) -> Tensor:
    return pad_sequence(utterances, batch_first=True, padding_value=value)


def init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
