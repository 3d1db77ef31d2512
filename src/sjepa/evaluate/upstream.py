"""Frozen features from any encoder: ours, a Hugging Face folder, Whisper, s3prl, a function, or MFCC and log-mel."""

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.audio.io import SAMPLE_RATE
from sjepa.audio.mfcc import MfccConfig, log_mel, mfcc
from sjepa.device import Device, choose_device
from sjepa.errors import UserError
from sjepa.evaluate.adapters import S3PRL, Adapted, as_states, by_length, is_function, load_function, load_s3prl
from sjepa.evaluate.whisper import WEIGHTS, load_whisper, windowed_states
from sjepa.files import read_json
from sjepa.model.encoder import Encoder
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.formats import fingerprint, from_hugging_face
from sjepa.model.frontend import RECEPTIVE_FIELD, STRIDE, frame_count
from sjepa.model.named import resolve_encoder
from sjepa.model.utterances import encode
from sjepa.runs.folder import RunFolder, find_run, name_encoder, suggest_run_inside
from sjepa.runs.steps import encoder_at

# Hugging Face model types that take waveforms and give hidden states.
ARCHITECTURES = ("hubert", "wavlm", "wav2vec2", "data2vec-audio", "unispeech", "unispeech-sat", "wav2vec2-conformer")
WHISPER = "whisper"
CONTEXT = 5  # frames on each side of `mfcc+context`
MELS = 80
FLOORS = ("mfcc", "mfcc+context", "logmel")
# Means and deviations of the floors on LibriSpeech dev-clean, rounded. One learning rate then serves all encoders,
# and no utterance is centred by itself, which would rob an average over its frames of all content.
LOG_MEL_MEAN, LOG_MEL_DEVIATION = 13.7, 4.0
CEPSTRUM_0_MEAN, CEPSTRA_DEVIATIONS = 74.0, (16.0, 4.5, 2.0)  # cepstra, differences, second differences
NOTHING = hashlib.sha256().hexdigest()[:16]  # fingerprint of no weights

Precision = Literal["fp32", "bf16"]
"""In which networks compute features, and in which these are kept."""
Extract = Callable[[Sequence[np.ndarray]], list[Tensor]]
"""Utterances (float32, 16 kHz) to their hidden states, each (states, frames, dimension)."""


@dataclass(frozen=True)
class Upstream:
    """A frozen encoder. What it makes of an utterance does not depend on the others of the call."""

    name: str
    states: int
    """Hidden states: the input of layer 0 and the output of each layer."""
    dimension: int
    parameters: int
    """Counted from the weights."""
    device: torch.device
    run: Extract = field(repr=False)
    network: nn.Module | None = field(default=None, repr=False)
    precision: Precision = "fp32"
    stride: float = STRIDE
    """Samples between frames."""
    centre: float = RECEPTIVE_FIELD / 2
    """Sample at the middle of the first frame."""
    step: int | None = None
    """The step of a run's checkpoint that was asked for."""

    def frame_centres(self, frames: int) -> np.ndarray:
        """Seconds at the middle of each of so many frames: where labels are read."""
        return (self.stride * np.arange(frames) + self.centre) / SAMPLE_RATE

    def frame_count(self, samples: int) -> int:
        """About how many frames a waveform has; exactly, with the frames of our own encoder."""
        ours = (self.stride, self.centre) == (STRIDE, RECEPTIVE_FIELD / 2)
        return frame_count(samples) if ours else max(1, round(samples / self.stride))

    @torch.inference_mode()
    def extract(self, utterances: Sequence[np.ndarray]) -> list[Tensor]:
        for samples in utterances:
            if len(samples) < RECEPTIVE_FIELD:
                raise UserError(f"{len(samples)} samples are too few: a frame needs {RECEPTIVE_FIELD} (25 ms)")
        found = self.run(utterances)
        if not all(bool(torch.isfinite(states).all()) for states in found):
            raise UserError(f"{self.name}: its features are not finite numbers; are its weights damaged?")
        return found

    def fingerprint(self) -> str:
        """A hash of all weights: equal before and after means that frozen was frozen."""
        return NOTHING if self.network is None else fingerprint(self.network)


def about(upstream: Upstream) -> dict[str, Any]:
    """The encoder as results name it."""
    known = {
        "name": upstream.name,
        "parameters": upstream.parameters,
        "states": upstream.states,
        "fingerprint": upstream.fingerprint(),
    }
    return known if upstream.step is None else known | {"step": upstream.step}


@contextmanager
def frozen(upstream: Upstream) -> Iterator[dict[str, Any]]:
    """The encoder as results name it; its weights are the same when the work is done."""
    before = about(upstream)
    yield before
    check_unchanged(upstream, before)


def check_unchanged(upstream: Upstream, before: dict[str, Any]) -> None:
    if about(upstream) != before:
        raise RuntimeError("the encoder's weights changed during the evaluation")


def load_upstream(
    source: str, device: Device = "cpu", precision: Precision = "fp32", step: int | None = None
) -> Upstream:
    """An encoder by path (a run, an encoder folder, a Hugging Face or Whisper folder), `untrained:PATH`, `s3prl:NAME`,
    `module:function`, or a floor by name. With `step`, a run's encoder as it was at that checkpoint.

    A floor has no network, and is in fp32 whatever the precision.
    """
    place = choose_device(device)
    if step is not None:
        return ours_at(Path(source), step, place, precision)
    if source in FLOORS:
        return floor(source, place)
    if source.startswith(S3PRL) or is_function(source):
        return adapted(load_s3prl(source, place) if source.startswith(S3PRL) else load_function(source, place), place)
    fresh = source.startswith("untrained:")
    folder = encoder_folder(Path(source.removeprefix("untrained:")))
    name = ("untrained " if fresh else "") + name_encoder(folder)
    settings = read_json(folder / "config.json") if (folder / "config.json").is_file() else {"model_type": WHISPER}
    if settings.get("model_type") == WHISPER:
        return whisper(name, folder, fresh, place, precision)
    if fits_ours(folder, settings):
        return ours(name, folder, settings, fresh, place, precision)
    if settings.get("model_type") not in ARCHITECTURES:
        raise UserError(
            f"{folder} holds a {settings.get('model_type', 'nameless')!r} network; encoders are sjepa's own, "
            f"or Hugging Face folders of type {', '.join((*ARCHITECTURES, WHISPER))}"
        )
    return hugging_face(name, folder, settings, fresh, place, precision)


def encoder_folder(path: Path) -> Path:
    """The folder with config.json: the path itself, or the encoder of a run; or one of Whisper's weights.

    An encoder that ships with the package is found by its name.
    """
    path = resolve_encoder(path, ", ".join(FLOORS))
    for folder in (path, RunFolder(path).encoder):
        if (folder / "config.json").is_file() or (folder / WEIGHTS).is_file():
            return folder
    hint = suggest_run_inside(path)
    raise UserError(f"{path} holds no encoder: neither config.json nor encoder/config.json is there{hint}")


def fits_ours(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether our encoder can run these weights, which it does in padded batches; HuBERT Base also fits."""
    if settings.get("model_type") != "hubert" or not (folder / "model.safetensors").is_file():
        return False
    try:
        from_hugging_face(settings)
    except UserError:
        return False
    return True


def ours(
    name: str, folder: Path, settings: dict[str, Any], fresh: bool, device: torch.device, precision: Precision
) -> Upstream:
    if fresh:
        torch.manual_seed(0)
        start = find_run(folder)  # its config says how the encoder started, which config.json does not hold
        config = start.config().encoder if start is not None else EncoderConfig(**from_hugging_face(settings))
        encoder = Encoder(config).eval()
    else:
        encoder = Encoder.from_pretrained(folder)
    return our_upstream(name, encoder, wants_normalized(folder, settings), device, precision)


def ours_at(path: Path, step: int, device: torch.device, precision: Precision) -> Upstream:
    """The encoder of a run at the checkpoint of a step."""
    upstream = our_upstream(f"{RunFolder(path).name}-step-{step}", encoder_at(path, step), False, device, precision)
    return replace(upstream, step=step)


def our_upstream(name: str, encoder: Encoder, normalize: bool, device: torch.device, precision: Precision) -> Upstream:
    encoder = encoder.to(device).requires_grad_(False)

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        if normalize:
            utterances = [normalized(samples) for samples in utterances]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return encode(encoder, utterances, device, partial(stack, precision=precision))

    layers, width = encoder.config.layers, encoder.config.hidden_size
    return Upstream(name, layers + 1, width, count(encoder), device, run, encoder, precision)


def hugging_face(
    name: str, folder: Path, settings: dict[str, Any], fresh: bool, device: torch.device, precision: Precision
) -> Upstream:
    try:
        import transformers
    except ImportError as error:
        raise UserError("this encoder runs through transformers: pip install 'sjepa[superb]'") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        if fresh:
            torch.manual_seed(0)
            network = transformers.AutoModel.from_config(
                transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False), trust_remote_code=False
            )
        else:
            network = transformers.AutoModel.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except pickle.UnpicklingError as error:  # whose words advise to load it unsafely
        raise UserError(
            f"{folder} holds pickled objects besides tensors, which could run code, and is refused"
        ) from error
    except Exception as error:  # transformers stumbles over damaged files in many ways
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder} cannot be loaded: {reason}") from error
    network = network.to(device).eval().requires_grad_(False)
    normalize = wants_normalized(folder, settings)

    def states(waveforms: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return stack(network(waveforms, output_hidden_states=True).hidden_states, precision)

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        if normalize:
            utterances = [normalized(samples) for samples in utterances]
        return by_length(utterances, device, states)

    layers, width = network.config.num_hidden_layers, network.config.hidden_size
    stride, seen = frame_geometry(network.config.conv_kernel, network.config.conv_stride)
    basics = (name, layers + 1, width, count(network), device, run, network, precision)
    return Upstream(*basics, stride=stride, centre=seen / 2)


def frame_geometry(kernels: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Samples between frames, and samples that a frame sees, of convolutions one after another."""
    seen, stride = 1, 1
    for kernel, step in zip(kernels, strides, strict=True):
        seen += (kernel - 1) * stride
        stride *= step
    return stride, seen


def whisper(name: str, folder: Path, fresh: bool, device: torch.device, precision: Precision) -> Upstream:
    """Whisper's encoder: frame t is centred on sample 320 t."""
    network = load_whisper(folder, fresh).to(device).eval().requires_grad_(False)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return [states.to(dtype) for states in windowed_states(network, utterances, device)]

    states, width = len(network.blocks) + 1, network.conv2.out_channels
    return Upstream(name, states, width, count(network), device, run, network, precision, centre=0.0)


def adapted(found: Adapted, device: torch.device) -> Upstream:
    """A network of others, always in fp32."""

    def states(waveforms: Tensor) -> Tensor:
        return stack(as_states(found.call(waveforms)), "fp32")

    name = found.source.replace(":", "-")
    parameters = 0 if found.network is None else count(found.network)
    basics = (name, found.states, found.dimension, parameters, device, lambda waves: by_length(waves, device, states))
    return Upstream(*basics, found.network, stride=found.stride, centre=found.centre)


def wants_normalized(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether waveforms are scaled to zero mean and unit variance, as the folder's preprocessor says."""
    preprocessor = folder / "preprocessor_config.json"
    if preprocessor.is_file():
        return bool(read_json(preprocessor).get("do_normalize", False))
    return settings.get("feat_extract_norm") == "layer"


def normalized(samples: np.ndarray) -> np.ndarray:
    """Zero mean and unit variance, as Hugging Face's feature extractor scales a waveform."""
    scaled: np.ndarray = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    return scaled


def floor(name: str, device: torch.device) -> Upstream:
    """Features without a network: one state of about unit variance on read speech."""
    config = MfccConfig()
    deviations = torch.tensor(CEPSTRA_DEVIATIONS, device=device).repeat_interleave(config.cepstra)

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        found = []
        for samples in utterances:
            waveform = torch.from_numpy(samples)[None].to(device)
            if name == "logmel":
                x = (log_mel(waveform, MELS, STRIDE) - LOG_MEL_MEAN) / LOG_MEL_DEVIATION
            else:
                x = mfcc(waveform, config)
                x[..., 0] -= CEPSTRUM_0_MEAN
                x = x / deviations
            found.append(with_context(x) if name == "mfcc+context" else x)
        return found

    dimension = MELS if name == "logmel" else config.dimension
    return Upstream(name, 1, dimension * (2 * CONTEXT + 1 if "context" in name else 1), 0, device, run)


def with_context(x: Tensor) -> Tensor:
    """Each frame with its neighbours beside it, the edges repeated: (1, T, D) -> (1, T, 11 D)."""
    padded = torch.cat([x[:, :1].expand(-1, CONTEXT, -1), x, x[:, -1:].expand(-1, CONTEXT, -1)], dim=1)
    return padded.unfold(1, 2 * CONTEXT + 1, 1).transpose(2, 3).flatten(2)


def stack(states: Sequence[Tensor], precision: Precision) -> Tensor:
    """States side by side, (B, S, T, D)."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return torch.stack([state.to(dtype) for state in states], dim=1)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
