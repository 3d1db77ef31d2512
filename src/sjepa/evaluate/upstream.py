"""Frozen features from any encoder: ours, a Hugging Face folder, Whisper, s3prl, a function, or MFCC and log-mel."""

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.audio.frames import RECEPTIVE_FIELD, STRIDE, describe_too_short, frame_count
from sjepa.audio.io import SAMPLE_RATE
from sjepa.device import Device, choose_device, explain_busy_cpu
from sjepa.errors import UserError
from sjepa.evaluate.adapters import (
    S3PRL,
    AdaptedNetwork,
    is_function,
    list_states,
    load_function,
    load_s3prl,
    run_by_length,
)
from sjepa.evaluate.baselines import BASELINES, compute_baseline
from sjepa.evaluate.whisper import WEIGHTS, extract_states, load_whisper
from sjepa.files import read_json
from sjepa.model.encoder_folder import EncoderFolder
from sjepa.model.formats import (
    ARCHITECTURES,
    HUBERT,
    OtherNetworkError,
    fingerprint,
    read_config,
    read_do_normalize,
    read_encoder,
)
from sjepa.model.frontend import VARIANCE_FLOOR
from sjepa.model.named import UNTRAINED, resolve_encoder
from sjepa.model.utterances import encode
from sjepa.runs.encoder import Encoder
from sjepa.runs.folder import RunFolder
from sjepa.runs.locate import find_encoder_folder, find_run, name_encoder, suggest_repair
from sjepa.runs.steps import load_encoder_at

WHISPER = "whisper"

Precision = Literal["fp32", "bf16"]
"""Precision of the network and of its features."""
Extract = Callable[[Sequence[np.ndarray]], list[Tensor]]
"""Maps utterances (float32, 16 kHz) to their hidden states, each (states, frames, dimension)."""


@dataclass(frozen=True)
class Upstream:
    """A frozen encoder. Batching does not change its features."""

    name: str
    states: int
    """Number of hidden states: the input of layer 0 and the output of each layer."""
    dimension: int
    device: torch.device
    run: Extract = field(repr=False)
    network: nn.Module | None = field(default=None, repr=False)
    precision: Precision = "fp32"
    stride: float = STRIDE
    """Samples between frames."""
    centre: float = RECEPTIVE_FIELD / 2
    """Centre of the first frame, in samples."""
    step: int | None = None
    """Step of the checkpoint, if one was requested."""
    loaded_fingerprint: str = ""
    """Hash of the weights, if it was computed when they were loaded here."""
    settings: str = ""
    """What determines the features besides the weights, as text. Of a user's function, the source of its module."""
    is_code: bool = False
    """Whether the features come from a user's function, so that `settings` may be incomplete."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all weights before the evaluation. `check_unchanged` hashes them again."""
        return self.loaded_fingerprint or hash_weights(self.network)

    @property
    def settings_hash(self) -> str:
        return hashlib.sha256(self.settings.encode()).hexdigest()[:8]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return 0 if self.network is None else sum(parameter.numel() for parameter in self.network.parameters())

    def frame_centres(self, frames: int) -> np.ndarray:
        """Return the centre of each frame in seconds."""
        return (self.stride * np.arange(frames) + self.centre) / SAMPLE_RATE

    def frame_count(self, samples: int) -> int:
        """Return the number of frames of a waveform: exact for our encoder, approximate for others."""
        ours = (self.stride, self.centre) == (STRIDE, RECEPTIVE_FIELD / 2)
        return frame_count(samples) if ours else max(1, round(samples / self.stride))

    @torch.inference_mode()
    def extract(self, utterances: Sequence[np.ndarray]) -> list[Tensor]:
        """Return the hidden states of utterances. Raise UserError if one is too short or a feature is not finite."""
        for samples in utterances:
            if len(samples) < RECEPTIVE_FIELD:
                raise UserError(describe_too_short(len(samples)))
        features = self.run(utterances)
        if not torch.stack([torch.isfinite(states).all() for states in features]).all():
            raise UserError(f"{self.name}: its features are not finite; its weights may be damaged")
        return features


def hash_weights(network: nn.Module | None) -> str:
    """Return a hash of all weights, to verify that they do not change."""
    return hashlib.sha256().hexdigest()[:16] if network is None else fingerprint(network)


def describe_encoder(upstream: Upstream) -> dict[str, Any]:
    """Return the description of an encoder in results."""
    known = {
        "name": upstream.name,
        "parameters": upstream.parameters,
        "states": upstream.states,
        "fingerprint": upstream.fingerprint,
        "settings": upstream.settings_hash,
    }
    return known if upstream.step is None else known | {"step": upstream.step}


@contextmanager
def check_frozen(upstream: Upstream) -> Iterator[dict[str, Any]]:
    """Yield the description of an encoder, and check on exit that its weights did not change."""
    yield describe_encoder(upstream)
    check_unchanged(upstream)


def check_unchanged(upstream: Upstream) -> None:
    if hash_weights(upstream.network) != upstream.fingerprint:
        raise RuntimeError("the encoder's weights changed during the evaluation")


def load_upstream(
    source: str, device: Device = "cpu", precision: Precision = "fp32", step: int | None = None
) -> Upstream:
    """Load an encoder.

    `source` is a path (a run, an encoder folder, a Hugging Face or Whisper folder), `untrained:PATH`, `s3prl:NAME`,
    `module:function`, or the name of baseline features. With `step`, load the encoder of a run's checkpoint. s3prl,
    functions and baseline features always use fp32.
    """
    chosen = choose_device(device)
    if chosen.type == "cpu":
        explain_busy_cpu()
    if step is not None:
        return load_checkpoint_encoder(Path(source), step, chosen, precision)
    if source in BASELINES:
        return wrap_baseline(source, chosen)
    if source.startswith(S3PRL) or is_function(source):
        load = load_s3prl if source.startswith(S3PRL) else load_function
        return wrap_network(load(source, chosen), chosen)
    fresh = source.startswith(UNTRAINED)
    folder = find_upstream_folder(Path(source.removeprefix(UNTRAINED)))
    name = ("untrained " if fresh else "") + name_encoder(folder)
    files = EncoderFolder(folder)
    settings = read_json(files.config_file) if files.exists else {"model_type": WHISPER}
    if settings.get("model_type") == WHISPER:
        return load_whisper_folder(name, folder, fresh, chosen, precision)
    with suggest_repair(folder):
        ours = is_compatible(files, settings)
    if ours:
        return load_own_encoder(name, folder, fresh, chosen, precision)
    if settings.get("model_type") not in ARCHITECTURES:
        raise UserError(
            f"{folder} has a network of type {settings.get('model_type', 'unknown')!r}; supported are sjepa's own, "
            f"and Hugging Face folders of type {', '.join((*ARCHITECTURES, WHISPER))}"
        )
    return load_hugging_face(name, folder, settings, fresh, chosen, precision)


def is_only_evaluated(source: str) -> bool:
    """Return whether `load_upstream` accepts an encoder that has no folder in the format of Hugging Face."""
    path = Path(source)
    if path.exists():
        return find_encoder_folder(path) is None and find_encoder_folder(path, WEIGHTS) is not None
    return source in BASELINES or source.startswith((S3PRL, UNTRAINED)) or is_function(source)


def find_upstream_folder(path: Path) -> Path:
    """Return the encoder folder, of any architecture, that belongs to a run, a folder or a shipped name."""
    path = resolve_encoder(path, BASELINES)
    folder = find_encoder_folder(path, WEIGHTS)
    if folder is None:
        hint = RunFolder(path).suggest_other()
        raise UserError(f"{path} has no encoder: neither config.json nor encoder/config.json exists{hint}")
    return folder


def is_compatible(folder: EncoderFolder, settings: dict[str, Any]) -> bool:
    """Return whether our encoder, which supports padded batches, can run these weights, such as HuBERT Base.

    Raise UserError for a damaged config, also of a network that transformers would run.
    """
    try:
        read_config(folder)
    except OtherNetworkError:
        return False
    return settings.get("model_type") == HUBERT and folder.weights.is_file()


def load_own_encoder(name: str, folder: Path, fresh: bool, device: torch.device, precision: Precision) -> Upstream:
    if fresh:
        with suggest_repair(folder):
            _, config = read_encoder(folder)  # the weights are only compared with the config
        start = find_run(folder)
        if start is not None:  # config.json lacks this option of the initialisation
            config = replace(config, attention_start=start.config().encoder.attention_start)
        torch.manual_seed(0)
        encoder = Encoder(config).eval()
        encoder.feature_extractor.normalizes_waveforms = bool(read_do_normalize(EncoderFolder(folder)))
    else:
        encoder = Encoder.from_pretrained(folder)
    return wrap_encoder(name, encoder, device, precision)


def load_checkpoint_encoder(path: Path, step: int, device: torch.device, precision: Precision) -> Upstream:
    """Load the encoder of a run's checkpoint."""
    upstream = wrap_encoder(f"{RunFolder(path).name}-step-{step}", load_encoder_at(path, step), device, precision)
    return replace(upstream, step=step)


def wrap_encoder(name: str, encoder: Encoder, device: torch.device, precision: Precision) -> Upstream:
    encoder = encoder.to(device).requires_grad_(False)

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return encode(encoder, utterances, device, partial(stack_states, precision=precision))

    states, width = encoder.config.layers + 1, encoder.config.hidden_size
    known = encoder.loaded_fingerprint
    settings = f"{encoder.config} {encoder.feature_extractor.normalizes_waveforms}"
    return Upstream(name, states, width, device, run, encoder, precision, loaded_fingerprint=known, settings=settings)


def load_hugging_face(
    name: str, folder: Path, settings: dict[str, Any], fresh: bool, device: torch.device, precision: Precision
) -> Upstream:
    try:
        import transformers
    except ImportError as error:
        raise UserError("this encoder needs transformers: pip install 'sjepa[superb]'") from error
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
    except pickle.UnpicklingError as error:  # its message recommends unsafe loading
        raise UserError(
            f"{folder} is not loaded: it contains pickled objects other than tensors, which could run code"
        ) from error
    except Exception as error:  # transformers raises many types for damaged files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder} cannot be loaded: {reason}") from error
    network = network.to(device).eval().requires_grad_(False)
    stated = read_do_normalize(EncoderFolder(folder))
    normalize = settings.get("feat_extract_norm") == "layer" if stated is None else stated

    def states(waveforms: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return stack_states(network(waveforms, output_hidden_states=True).hidden_states, precision)

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        if normalize:
            utterances = [normalize_waveform(samples) for samples in utterances]
        return run_by_length(utterances, device, states)

    config = network.config
    stride, field = frame_geometry(config.conv_kernel, config.conv_stride)
    return Upstream(
        name,
        config.num_hidden_layers + 1,
        config.hidden_size,
        device,
        run,
        network,
        precision,
        stride=stride,
        centre=field / 2,
        settings=f"{config.to_json_string()} {normalize}",
    )


def frame_geometry(kernels: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return stride and receptive field in samples of a sequence of convolutions."""
    field, stride = 1, 1
    for kernel, step in zip(kernels, strides, strict=True):
        field += (kernel - 1) * stride
        stride *= step
    return stride, field


def load_whisper_folder(name: str, folder: Path, fresh: bool, device: torch.device, precision: Precision) -> Upstream:
    """Load Whisper's encoder. Frame t is centred on sample 320 t."""
    network = load_whisper(folder, fresh).to(device).eval().requires_grad_(False)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return [states.to(dtype) for states in extract_states(network, utterances, device)]

    states, width = len(network.blocks) + 1, network.conv2.out_channels
    return Upstream(name, states, width, device, run, network, precision, centre=0.0)


def wrap_network(adapted: AdaptedNetwork, device: torch.device) -> Upstream:
    """Wrap an external network, always in fp32."""

    def states(waveforms: Tensor) -> Tensor:
        return stack_states(list_states(adapted.call(waveforms)), "fp32")

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        return run_by_length(utterances, device, states)

    return Upstream(
        adapted.source.replace(":", "-"),
        adapted.states,
        adapted.dimension,
        device,
        run,
        adapted.network,
        stride=adapted.stride,
        centre=adapted.centre,
        settings=adapted.code,
        is_code=is_function(adapted.source),
    )


def normalize_waveform(samples: np.ndarray) -> np.ndarray:
    """Scale to zero mean and unit variance, as Hugging Face's feature extractor does."""
    scaled: np.ndarray = (samples - samples.mean()) / np.sqrt(samples.var() + VARIANCE_FLOOR)
    return scaled


def wrap_baseline(name: str, device: torch.device) -> Upstream:
    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        return [compute_baseline(name, torch.from_numpy(samples)[None].to(device)) for samples in utterances]

    return Upstream(name, 1, BASELINES[name], device, run)


def stack_states(states: Sequence[Tensor], precision: Precision) -> Tensor:
    """Stack states to (B, S, T, D)."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return torch.stack([state.to(dtype) for state in states], dim=1)
