"""Read and write weights and configs in the format of Hugging Face's HuBERT. Read weights of other programs."""

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from sjepa.audio.io import SAMPLE_RATE
from sjepa.counts import name_first
from sjepa.errors import UserError
from sjepa.fields import NUMBER, TEXT, WHOLE, Kind, check_fields, list_of, shorten
from sjepa.files import read_json, save_tensors, write_whole
from sjepa.model.encoder_config import KERNELS, SIZES, STRIDES, EncoderConfig
from sjepa.model.encoder_folder import WEIGHT_FILES, EncoderFolder
from sjepa.model.foreign import infer_config_fields, infer_sizes, rename_weights
from sjepa.model.position import HALVES

HUBERT = "hubert"
# Hugging Face model types from waveforms to hidden states. Their configs have the fields of HuBERT's.
ARCHITECTURES = (HUBERT, "wavlm", "wav2vec2", "data2vec-audio", "unispeech", "unispeech-sat", "wav2vec2-conformer")
# Our config field -> Hugging Face's.
FIELDS = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner_size": "intermediate_size",
    "position_kernel": "num_conv_pos_embeddings",
    "position_groups": "num_conv_pos_embedding_groups",
    "dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "layerdrop": "layerdrop",
}
# Values that the architecture fixes. A folder with other values holds another network.
FIXED: dict[str, Any] = {
    "model_type": HUBERT,
    "conv_kernel": list(KERNELS),
    "conv_stride": list(STRIDES),
    "conv_bias": False,
    "feat_extract_norm": "group",
    "do_stable_layer_norm": False,
    "hidden_act": "gelu",
    "feat_extract_activation": "gelu",
    "feat_proj_layer_norm": True,
    "conv_pos_batch_norm": False,
    "layer_norm_eps": 1e-5,
}
SHORT = Kind("a whole number from 1 to 1,000", lambda value: type(value) is int and 1 <= value <= 1000)
CONVOLUTIONS = {"conv_dim": list_of(WHOLE), "conv_kernel": list_of(SHORT), "conv_stride": list_of(SHORT)}
FIELD_KINDS = {theirs: WHOLE if name in SIZES else NUMBER for name, theirs in FIELDS.items()} | CONVOLUTIONS
NAMED = 3  # weights that a message names; it counts the others
# What else a feature extractor of transformers needs. Our encoder uses the mask to find padding.
PREPROCESSOR: dict[str, Any] = {
    "feature_extractor_type": "Wav2Vec2FeatureExtractor",
    "feature_size": 1,
    "sampling_rate": SAMPLE_RATE,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}
# Keys under which training programs store the weights in a larger file.
NESTED = ("model", "state_dict", "model_weight")


def to_hugging_face(config: EncoderConfig) -> dict[str, Any]:
    """Return the contents of config.json for an encoder."""
    ours = asdict(config)
    settings = FIXED | {theirs: ours[name] for name, theirs in FIELDS.items()}
    return settings | {
        "architectures": ["HubertModel"],
        "conv_dim": [config.conv_channels] * len(KERNELS),
        "num_feat_extract_layers": len(KERNELS),
        "feat_proj_dropout": config.dropout,
        "mask_time_prob": 0.0,
        "mask_feature_prob": 0.0,
    }


class OtherNetworkError(UserError):
    """A folder holds another network than ours."""

    def __init__(self, folder: Path, kind: str, reason: str):
        super().__init__(f"{folder} holds a {kind!r} network: {reason}")
        self.folder, self.kind = folder, kind


def read_config(folder: EncoderFolder) -> EncoderConfig:
    """Read config.json. No network is built yet, so sizes that exceed any memory are refused without using it.

    Raise OtherNetworkError for a sound config of another network, and UserError for a damaged config: values of the
    wrong type or out of bounds, or sizes that contradict each other. Every command reads the config of an encoder here.
    """
    file = folder.config_file
    settings = read_json(file)
    check_fields(settings, {"model_type": TEXT}, str(file))
    kind, difference = settings.get("model_type", "nameless"), find_difference(settings)
    if "model_type" in settings and kind not in ARCHITECTURES:  # it may give the fields other meanings
        raise OtherNetworkError(folder.path, kind, difference)
    check_fields(settings, FIELD_KINDS, str(file))
    lengths = {len(settings.get(name, KERNELS)) for name in CONVOLUTIONS}
    if len(lengths) > 1 or 0 in lengths:
        raise UserError(f"{file}: {', '.join(CONVOLUTIONS)} should be lists of the same length, at least 1")
    fields = {name: settings[theirs] for name, theirs in FIELDS.items() if theirs in settings}
    fields["conv_channels"] = max(settings.get("conv_dim", [EncoderConfig.conv_channels]))
    if difference and "position_kernel" in fields:
        fields["position_kernel"] += fields["position_kernel"] % 2  # only our encoder needs an even kernel
    config = make_config(fields, str(file))
    if difference:
        raise OtherNetworkError(folder.path, kind, difference)
    return config


def find_difference(settings: dict[str, Any]) -> str:
    """Return how the architecture of a config differs from ours. Empty if it does not."""
    for key, value in FIXED.items():
        if settings.get(key, value) != value:
            given = shorten(settings[key])
            return f"this is another architecture: its config has {key} = {given}, not {value!r}"
    widths = settings.get("conv_dim")
    if isinstance(widths, list) and any(width != widths[0] for width in widths):
        return f"this is another architecture: conv_dim {shorten(widths)} should be one width"
    return ""


def make_config(fields: dict[str, Any], source: str) -> EncoderConfig:
    """Return our config. Raise UserError that names the source if its values are out of bounds."""
    try:
        return EncoderConfig(**fields)
    except UserError as error:
        raise UserError(f"{source} does not describe an encoder: {error}") from error


def save_folder(
    path: Path, weights: dict[str, Tensor], settings: dict[str, Any], normalizes_waveforms: bool = False
) -> None:
    """Write a folder that transformers' AutoModel and AutoFeatureExtractor load, in the precision of the weights."""
    path.mkdir(parents=True, exist_ok=True)
    folder = EncoderFolder(path)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    save_tensors(folder.weights, weights, metadata={"format": "pt"})
    write_json(folder.config_file, settings | {"dtype": dtype})
    write_json(folder.preprocessor, PREPROCESSOR | {"do_normalize": normalizes_waveforms})


def read_do_normalize(folder: EncoderFolder) -> bool | None:
    """Return whether a folder asks for waveforms with zero mean and unit variance. None if it does not say."""
    if not folder.preprocessor.is_file():
        return None
    return bool(read_json(folder.preprocessor).get("do_normalize", False))


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_encoder(path: Path) -> tuple[dict[str, Tensor], EncoderConfig]:
    """Read weights under our names, and the config of the encoder.

    `path` is a Hugging Face HuBERT folder, or a file of weights (safetensors, or torch without pickled objects) with
    names of Hugging Face, fairseq or torchaudio. Sizes come from config.json, or else from the weights.
    `runs.locate.find_encoder` finds the folder of a run.
    """
    if path.is_file():
        folder = EncoderFolder(path.parent)
        if not folder.exists or read_json(folder.config_file).get("model_type") != HUBERT:
            weights = rename_weights(read_weights(path), str(path))
            return weights, make_config(infer_config_fields(weights, str(path)), str(path))
    else:
        folder = EncoderFolder(path)
        if not folder.exists:
            raise UserError(f"{path} is not an encoder folder: it has no {folder.config_file.name}")
    config = read_config(folder)  # before reading the weights, whose error would be less clear
    file = path if path.is_file() else folder.find_weights()
    if file is None:
        raise UserError(f"{path} is not an encoder folder: it has no {' or '.join(WEIGHT_FILES)}")
    weights = rename_weights(read_weights(file), str(file))
    check_sizes(weights, config, path)
    return weights, config


def check_sizes(weights: dict[str, Tensor], config: EncoderConfig, source: Path) -> None:
    """Raise UserError if the sizes of config and weights differ, before a network is built."""
    for name, size in infer_sizes(weights, str(source)).items():
        given = getattr(config, name)
        if given != size:
            raise UserError(
                f"{source}: weights of another size: config.json has {name} {given}, the weights have {size}"
            )


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a file. Raise UserError if it holds other pickled objects, which could run code."""
    try:
        # A safetensors file starts with a length and JSON.
        with file.open("rb") as opened:
            plain = opened.read(9)[8:] == b"{"
        found: Any = safetensors.torch.load_file(file) if plain or file.suffix == ".safetensors" else load_tensors(file)
    except safetensors.SafetensorError as error:
        raise UserError(f"{file} is damaged or incomplete ({error}): copy it here again") from error
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    found = found if isinstance(found, dict) else {}
    found = next((found[name] for name in NESTED if isinstance(found.get(name), dict)), found)
    weights = {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
    if not weights:
        raise UserError(f"{file} holds no weights")
    return weights


def load_tensors(file: Path) -> Any:
    """Read a file of torch that holds only tensors. Raise UserError for other pickled objects."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{file} holds pickled objects besides tensors, which could run code, and is refused "
            "(docs/use.md, Checkpoints of other programs)"
        ) from error
    except Exception as error:  # bytes that are not a pickle can raise anything
        raise UserError(f"{file} is not a file of weights") from error


def select_part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it: the weights of one module of a larger one."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_strictly(module: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights under our names. Raise UserError unless all fit and are finite."""
    wanted = module.state_dict()
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unknown:
        raise UserError(f"{source}: weights do not fit: missing {preview(missing)}; unknown {preview(unknown)}")
    wrong = [name for name, tensor in wanted.items() if tensor.shape != weights[name].shape]
    if wrong:
        raise UserError(f"{source}: weights of another size: {preview(wrong)}")
    broken = [name for name, tensor in weights.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise UserError(f"{source}: weights that are not finite numbers: {preview(broken)}")
    module.load_state_dict(weights)


def fingerprint(module: nn.Module) -> str:
    """Return a hash of all weights."""
    return fingerprint_weights(module.state_dict())


def fingerprint_weights(weights: dict[str, Tensor]) -> str:
    """Return a hash of named tensors. Tensors in half precision are hashed in fp32, as they are loaded."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        tensor = tensor.float() if tensor.dtype in HALVES else tensor
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def preview(names: list[str]) -> str:
    return name_first(names, NAMED) or "none"
