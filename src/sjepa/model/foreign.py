"""Convert HuBERT weight names from fairseq, torchaudio and Hugging Face to ours, and infer sizes from weights.

Weights that only pre-training or a task needs (mask and label embeddings, output layers) are ignored by name. Any
other unknown weight is an error when the weights are loaded.
"""

import re
from typing import Any

from torch import Tensor

from sjepa.errors import UserError

HUGGING_FACE, FAIRSEQ, TORCHAUDIO = "Hugging Face", "fairseq", "torchaudio"
# A weight name that only this family uses.
SIGNATURES = {
    FAIRSEQ: "post_extract_proj.weight",
    TORCHAUDIO: "encoder.feature_projection.projection.weight",
    HUGGING_FACE: "feature_projection.projection.weight",
}
# Prefixes of encoder weights in fine-tuned or wrapped models.
PREFIXES = ("module.", "hubert.", "wav2vec2.", "w2v_encoder.w2v_model.", "encoder.w2v_model.")
# Weights that do not belong to the encoder.
IGNORED = {
    HUGGING_FACE: r"masked_spec_embed|lm_head\..*|projector\..*|classifier\..*|layer_weights",
    FAIRSEQ: r"mask_emb|label_embs_concat|final_proj\..*|w2v_encoder\.proj\..*|encoder\.proj\..*",
    TORCHAUDIO: r"mask_generator\.mask_embedding|logit_generator\..*|aux\..*",
}
# Pattern for the start of their name, and our name. The first match applies.
NAMES: dict[str, list[tuple[str, str]]] = {
    HUGGING_FACE: [],
    FAIRSEQ: [
        (r"feature_extractor\.conv_layers\.(\d+)\.0\.", r"feature_extractor.conv_layers.\1.conv."),
        (r"feature_extractor\.conv_layers\.0\.2\.", "feature_extractor.conv_layers.0.layer_norm."),
        (r"layer_norm\.", "feature_projection.layer_norm."),
        (r"post_extract_proj\.", "feature_projection.projection."),
        (r"encoder\.pos_conv\.0\.", "encoder.pos_conv_embed.conv."),
        (r"encoder\.layers\.(\d+)\.self_attn\.", r"encoder.layers.\1.attention."),
        (r"encoder\.layers\.(\d+)\.self_attn_layer_norm\.", r"encoder.layers.\1.layer_norm."),
        (r"encoder\.layers\.(\d+)\.fc1\.", r"encoder.layers.\1.feed_forward.intermediate_dense."),
        (r"encoder\.layers\.(\d+)\.fc2\.", r"encoder.layers.\1.feed_forward.output_dense."),
    ],
    TORCHAUDIO: [
        (r"encoder\.feature_projection\.", "feature_projection."),
        (r"encoder\.transformer\.", "encoder."),
    ],
}
# Older names of the position convolution's weight norm, from before torch had parametrizations.
WEIGHT_NORM = {
    "encoder.pos_conv_embed.conv.weight_g": "encoder.pos_conv_embed.conv.parametrizations.weight.original0",
    "encoder.pos_conv_embed.conv.weight_v": "encoder.pos_conv_embed.conv.parametrizations.weight.original1",
}
HEAD_SIZE = 64  # in every released HuBERT; weights do not determine the number of heads


def rename_weights(weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return the encoder's weights under our names. Names without a rule stay unchanged."""
    for prefix in PREFIXES:
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    family = next((family for family, mark in SIGNATURES.items() if mark in weights), None)
    if family is None:
        raise UserError(
            f"{source}: not a HuBERT encoder of {', '.join(NAMES)}: neither {' nor '.join(SIGNATURES.values())} is "
            f"among its {len(weights)} weights; the first are {', '.join(sorted(weights)[:3]) or 'missing'}"
        )
    ignored = re.compile(IGNORED[family])
    return {rename_weight(name, family): tensor for name, tensor in weights.items() if not ignored.fullmatch(name)}


def rename_weight(name: str, family: str) -> str:
    """Return our name for a weight of a family."""
    for pattern, ours in NAMES[family]:
        renamed, found = re.subn(f"^{pattern}", ours, name)
        if found:
            name = renamed
            break
    return WEIGHT_NORM.get(name, name)


def infer_config_fields(weights: dict[str, Tensor], source: str) -> dict[str, Any]:
    """Infer the fields of EncoderConfig from weights under our names, assuming heads of size 64."""
    found = infer_sizes(weights, source)
    hidden = found["hidden_size"]
    if hidden % HEAD_SIZE:
        raise UserError(
            f"{source}: the width {hidden} is not a multiple of the head size {HEAD_SIZE}: "
            "put the model's config.json in the same folder"
        )
    return found | {"heads": hidden // HEAD_SIZE}


def infer_sizes(weights: dict[str, Tensor], source: str) -> dict[str, Any]:
    """Infer every size that the weights determine: all except the number of heads."""
    try:
        hidden, channels = weights["feature_projection.projection.weight"].shape
        position = weights["encoder.pos_conv_embed.conv.parametrizations.weight.original1"]
        inner = weights["encoder.layers.0.feed_forward.intermediate_dense.weight"].shape[0]
        _, width, kernel = position.shape
        groups = hidden // width
    except KeyError as error:
        raise UserError(f"{source}: weights do not fit: missing {error.args[0]}") from error
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise UserError(f"{source}: weights do not fit: their shapes are not those of an encoder") from error
    numbers = [int(found[1]) for name in weights if (found := re.match(r"encoder\.layers\.(\d+)\.", name))]
    return {
        "hidden_size": hidden,
        "layers": max(numbers) + 1,
        "inner_size": inner,
        "conv_channels": channels,
        "position_kernel": kernel,
        "position_groups": groups,
    }
