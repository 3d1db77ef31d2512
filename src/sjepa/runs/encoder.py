"""The public encoder: load it from a run, a folder, a file or a name, with its mixture and cluster head."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sjepa.audio.frames import RECEPTIVE_FIELD, frame_count
from sjepa.errors import UserError
from sjepa.fields import shorten
from sjepa.model import formats
from sjepa.model.encoder import EncoderNetwork, check_shape
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.encoder_folder import EncoderFolder, find_encoder_files
from sjepa.model.frontend import Moments
from sjepa.model.named import resolve_encoder
from sjepa.model.position import HALVES
from sjepa.model.stream import FeatureStream
from sjepa.model.stream_config import StreamConfig
from sjepa.runs.heads import load_clusters, read_own_clusters
from sjepa.runs.locate import find_encoder, suggest_repair
from sjepa.targets.clusters import Clusters

UnitsFrom = Literal["mixture", "head"]
"""Units come from the mixture or from the cluster head."""


class Encoder(EncoderNetwork):
    """A speech encoder with HuBERT's architecture at the size of `config`; weights carry Hugging Face's names.

    >>> from sjepa import Encoder
    >>> encoder = Encoder.from_pretrained("runs/mine")
    >>> encoder(torch.zeros(1, 16_000)).last.shape  # waveforms at 16 kHz to 50 frames per second
    torch.Size([1, 49, 32])
    """

    def __init__(self, config: EncoderConfig | None = None):
        super().__init__(config)
        self.source: Path | None = None
        self.loaded_fingerprint = ""  # hash of the weights when they were loaded, if it was computed
        # In a list, so that torch does not register the clusters as a submodule.
        self.held_clusters: list[Clusters] = []

    def convolve(self, waveforms: Tensor, lengths: Tensor | None = None, moments: Moments | None = None) -> Tensor:
        """Return the features of the feature extractor. Raise UserError for arguments that cannot be right."""
        check_waveforms(waveforms, lengths)
        return super().convolve(waveforms, lengths, moments)

    def stream(
        self,
        chunk: float = StreamConfig.chunk,
        look_ahead: float = StreamConfig.look_ahead,
        context: float = StreamConfig.context,
        layer: int | None = None,
    ) -> FeatureStream:
        """Return a stream that computes features of live audio at 16 kHz in chunks. Times are in seconds.

        `layer` counts from 0; the default is the last. A frame sees `context` before its chunk and `look_ahead` after
        it. Its delay is at most `chunk` + `look_ahead`, plus the time to compute. `model/stream.py` explains how the
        result differs from that of the whole recording.

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
    def clusters(self) -> Clusters:
        """The mixture and the cluster head that were trained with this encoder, on the encoder's device."""
        if not self.held_clusters:
            if self.source is None:
                raise UserError(
                    "this encoder has no mixture and no cluster head: load one with Encoder.from_pretrained"
                )
            self.held_clusters = [load_clusters(self.source, self)]
        return self.held_clusters[0].to(next(self.parameters()).device)

    @torch.inference_mode()
    def posteriors(self, waveforms: Tensor, lengths: Tensor | None = None, temperature: float = 1.0) -> Tensor:
        """Return posteriors (B, T, K) of the mixture for waveforms (B, N).

        The mixture reads the layer that it was fitted on. Training used `encoder.clusters.info.temperature`. Frames
        beyond the length of an utterance are 0.
        """
        clusters = self.clusters
        return pad([clusters.mixture_posteriors(x, temperature) for x in self.mixture_features(waveforms, lengths)])

    @torch.inference_mode()
    def head_posteriors(self, waveforms: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the distributions (B, T, K) of the cluster head. Frames beyond the length of an utterance are 0."""
        clusters = self.clusters
        return pad([clusters.head_posteriors(x) for x in self.utterance_states(waveforms, lengths, -1)])

    @torch.inference_mode()
    def units(self, waveforms: Tensor, lengths: Tensor | None = None, source: UnitsFrom = "head") -> Tensor:
        """Return the most likely component (B, T) at each frame, or -1 beyond the length of an utterance.

        The default is that of the cluster head. `source="mixture"` selects that of the mixture, on its own layer.

        >>> from sjepa import Encoder
        >>> Encoder.from_pretrained("runs/mine").units(torch.zeros(1, 16_000)).shape
        torch.Size([1, 49])
        """
        if source not in get_args(UnitsFrom):
            raise UserError(f"units come from {' or '.join(get_args(UnitsFrom))}, not from {shorten(source)}")
        clusters = self.clusters
        if source == "mixture":
            return pad([clusters.mixture_units(x) for x in self.mixture_features(waveforms, lengths)], -1)
        states = self.utterance_states(waveforms, lengths, -1)
        return pad([clusters.head_posteriors(x).argmax(-1) for x in states], -1)

    def mixture_features(self, waveforms: Tensor, lengths: Tensor | None) -> list[Tensor]:
        """Return the features (T, D) of each utterance that the mixture reads."""
        check_waveforms(waveforms, lengths)
        clusters = self.clusters
        counts = [waveforms.shape[1]] * len(waveforms) if lengths is None else lengths.tolist()
        utterances = [samples[:count] for samples, count in zip(waveforms, counts, strict=True)]
        if clusters.hidden_state_index is None:
            return [clusters.mixture_features(samples, None) for samples in utterances]
        states = self.utterance_states(waveforms, lengths, clusters.hidden_state_index)
        return [clusters.mixture_features(samples, x) for samples, x in zip(utterances, states, strict=True)]

    def utterance_states(self, waveforms: Tensor, lengths: Tensor | None, state: int) -> list[Tensor]:
        """Return a hidden state (T, D) of each utterance, without padding."""
        output = self(waveforms, lengths, until=None if state < 0 else state - 1)
        if lengths is None:
            return list(output.hidden_states[state])
        counts = [frame_count(count) for count in lengths.tolist()]
        return [x[:count] for x, count in zip(output.hidden_states[state], counts, strict=True)]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `from_pretrained` and Hugging Face's AutoModel can load, in the precision of the weights.

        The folder includes the mixture and the cluster head if the encoder has them.
        """
        settings = formats.to_hugging_face(self.config)
        formats.save_folder(Path(folder), self.state_dict(), settings, self.feature_extractor.normalizes_waveforms)
        if self.held_clusters:
            half = next(self.parameters()).dtype in HALVES
            file = EncoderFolder(Path(folder)).clusters
            self.held_clusters[0].save(file, encoder=formats.fingerprint(self), half=half)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load the encoder of a run or folder, a Hugging Face HuBERT, a file of weights, or a shipped encoder by name.

        Weights in a file may have the names of Hugging Face, fairseq or torchaudio. The encoder is in fp32 and in
        evaluation mode. If preprocessor_config.json has `do_normalize`, the encoder normalises waveforms itself.
        """
        source = resolve_encoder(path)
        place = find_encoder(source)
        files = find_encoder_files(place)
        with suggest_repair(place):
            weights, config = formats.read_encoder(place)
            encoder = cls(config)
            formats.load_strictly(encoder, weights, str(path))
            encoder.feature_extractor.normalizes_waveforms = bool(formats.read_do_normalize(files))
        encoder.source = source
        encoder.load_own_clusters(files.clusters)
        return encoder.eval()

    def load_own_clusters(self, file: Path) -> None:
        """Load mixture and head of these weights. An error is raised only when they are used."""
        if file.is_file():
            with suppress(UserError):
                clusters = read_own_clusters(file, self)
                self.held_clusters, self.loaded_fingerprint = [clusters], clusters.info.encoder


def check_waveforms(waveforms: Any, lengths: Any) -> None:
    """Raise UserError unless these are waveforms (B, N) and, if given, the samples of each one.

    Lengths on a GPU are not read, because the host would wait for it.
    """
    if not isinstance(waveforms, Tensor) or not waveforms.is_floating_point():
        hint = "torch.from_numpy and float() convert arrays"
        raise UserError(f"waveforms should be a tensor of floats, not {describe_type(waveforms)}: {hint}")
    check_shape(waveforms)
    if lengths is None:
        return
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise UserError(f"lengths should be a tensor of whole numbers of samples, not {describe_type(lengths)}")
    count, samples = waveforms.shape
    if lengths.shape != (count,):
        raise UserError(f"lengths should have shape ({count},), one per waveform, not {tuple(lengths.shape)}")
    if lengths.is_cuda:
        return
    wrong = [length for length in lengths.tolist() if not RECEPTIVE_FIELD <= length <= samples]
    if wrong:
        raise UserError(f"length {wrong[0]}: lengths should be from {RECEPTIVE_FIELD} to {samples}, the samples given")


def describe_type(value: Any) -> str:
    kind = type(value)
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"{kind.__module__}.{kind.__name__}"


def pad(utterances: list[Tensor], value: float = 0.0) -> Tensor:
    return pad_sequence(utterances, batch_first=True, padding_value=value)
