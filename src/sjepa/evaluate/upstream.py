"""Frozen features from any encoder: ours, a Hugging Face folder, or MFCC and log-mel as the floor."""

import hashlib
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.audio.mfcc import MfccConfig, log_mel, mfcc
from sjepa.device import Device, choose_device
from sjepa.errors import UserError
from sjepa.files import read_json
from sjepa.model.encoder import Encoder
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.formats import fingerprint, from_hugging_face
from sjepa.model.frontend import RECEPTIVE_FIELD, STRIDE
from sjepa.model.utterances import encode
from sjepa.runs.folder import RunFolder, find_run, name_encoder, suggest_run_inside

ARCHITECTURES = ("hubert", "wavlm", "wav2vec2")  # Hugging Face model types with hidden states at stride 320
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
    return {
        "name": upstream.name,
        "parameters": upstream.parameters,
        "states": upstream.states,
        "fingerprint": upstream.fingerprint(),
    }


@contextmanager
def frozen(upstream: Upstream) -> Iterator[dict[str, Any]]:
    """The encoder as results name it; its weights are the same when the work is done."""
    before = about(upstream)
    yield before
    check_unchanged(upstream, before)


def check_unchanged(upstream: Upstream, before: dict[str, Any]) -> None:
    if about(upstream) != before:
        raise RuntimeError("the encoder's weights changed during the evaluation")


def load_upstream(source: str, device: Device = "cpu", precision: Precision = "fp32") -> Upstream:
    """An encoder by path (a run, an encoder folder, a Hugging Face folder), `untrained:PATH`, or a floor by name.

    A floor has no network, and is in fp32 whatever the precision.
    """
    place = choose_device(device)
    if source in FLOORS:
        return floor(source, place)
    fresh = source.startswith("untrained:")
    folder = encoder_folder(Path(source.removeprefix("untrained:")))
    name = ("untrained " if fresh else "") + name_encoder(folder)
    settings = read_json(folder / "config.json")
    if fits_ours(folder, settings):
        return ours(name, folder, settings, fresh, place, precision)
    if settings.get("model_type") not in ARCHITECTURES:
        raise UserError(
            f"{folder} holds a {settings.get('model_type', 'nameless')!r} network; encoders are sjepa's own, "
            f"or Hugging Face folders of type {', '.join(ARCHITECTURES)}"
        )
    return hugging_face(name, folder, settings, fresh, place, precision)


def encoder_folder(path: Path) -> Path:
    """The folder with config.json: the path itself, or the encoder of a run."""
    for folder in (path, RunFolder(path).encoder):
        if (folder / "config.json").is_file():
            return folder
    if not path.exists():
        raise UserError(f"there is no encoder {path}: give a run, a folder with config.json, or {', '.join(FLOORS)}")
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
    encoder = encoder.to(device).requires_grad_(False)
    normalize = wants_normalized(folder, settings)

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
    strides = int(np.prod(network.config.conv_stride))
    if strides != STRIDE:
        raise UserError(f"{folder}: its frames are {strides} samples apart; this evaluation is for {STRIDE}")
    normalize = wants_normalized(folder, settings)

    def run(utterances: Sequence[np.ndarray]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        order = sorted(range(len(utterances)), key=lambda i: len(utterances[i]))
        # These networks have no exact treatment of padding, so only utterances of one length share a batch.
        for _, group in itertools.groupby(order, key=lambda i: len(utterances[i])):
            members = list(group)
            samples = [normalized(utterances[i]) if normalize else utterances[i] for i in members]
            waveforms = torch.from_numpy(np.stack(samples)).to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                states = stack(network(waveforms, output_hidden_states=True).hidden_states, precision)
            found.update(zip(members, states, strict=True))
        return [found[index] for index in range(len(utterances))]

    layers, width = network.config.num_hidden_layers, network.config.hidden_size
    return Upstream(name, layers + 1, width, count(network), device, run, network, precision)


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
