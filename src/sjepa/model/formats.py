"""Weights and configs on disk: safetensors and JSON under Hugging Face's HuBERT names."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.files import write_whole
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.frontend import KERNELS, STRIDES

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
# What the architecture fixes; a folder that says otherwise holds another network.
FIXED: dict[str, Any] = {
    "model_type": "hubert",
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
# Spellings of the position convolution's weight norm before torch had parametrizations.
LEGACY = {
    "pos_conv_embed.conv.weight_g": "pos_conv_embed.conv.parametrizations.weight.original0",
    "pos_conv_embed.conv.weight_v": "pos_conv_embed.conv.parametrizations.weight.original1",
}


def to_hugging_face(config: EncoderConfig) -> dict[str, Any]:
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


def from_hugging_face(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of our EncoderConfig; refuses a config of another architecture."""
    for key, value in FIXED.items():
        if settings.get(key, value) != value:
            raise UserError(f"this is another architecture: its config has {key} = {settings[key]!r}, not {value!r}")
    channels = set(settings.get("conv_dim", [512]))
    if len(channels) != 1:
        raise UserError(f"this is another architecture: conv_dim {sorted(channels)} should be one width")
    return {name: settings[theirs] for name, theirs in FIELDS.items() if theirs in settings} | {
        "conv_channels": channels.pop()
    }


def save_folder(folder: Path, weights: dict[str, Tensor], settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    partial = folder / "model.safetensors.partial"
    safetensors.torch.save_file(tensors, partial, metadata={"format": "pt"})
    os.replace(partial, folder / "model.safetensors")
    write_whole(folder / "config.json", json.dumps(settings, indent=2, sort_keys=True) + "\n")


def load_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if (folder / "encoder" / "config.json").is_file():  # a run
        folder = folder / "encoder"
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise UserError(f"{folder} is not an encoder folder: it has no {name}")
    try:
        settings = json.loads((folder / "config.json").read_text())
        weights = safetensors.torch.load_file(folder / "model.safetensors")
    except (ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder} cannot be read: {error}") from error
    return weights, settings


def load_strictly(module: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights whose names must all fit; only HuBERT's mask embedding, which we do not have, may be left over."""
    for old, new in LEGACY.items():
        weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    weights = {name.removeprefix("hubert."): tensor for name, tensor in weights.items()}
    weights.pop("masked_spec_embed", None)
    wanted = module.state_dict()
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unknown:
        raise UserError(f"{source}: weights do not fit: missing {preview(missing)}; unknown {preview(unknown)}")
    wrong = [name for name, tensor in wanted.items() if tensor.shape != weights[name].shape]
    if wrong:
        raise UserError(f"{source}: weights of another size: {preview(wrong)}")
    module.load_state_dict(weights)


def preview(names: list[str], most: int = 3) -> str:
    return (
        ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
    )
