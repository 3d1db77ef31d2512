"""Names and sizes of HuBERT weights as fairseq, torchaudio and Hugging Face spell them, mapped to ours.

Every name must find its place. What only pre-training or a task needed (mask and label embeddings, output layers) is
left out by name; anything else that is left over is an error when the weights are loaded.
"""

import re
from typing import Any

from torch import Tensor

from sjepa.errors import UserError

HUGGING_FACE, FAIRSEQ, TORCHAUDIO = "Hugging Face", "fairseq", "torchaudio"
# A weight that only this family has under this name.
MARKS = {
    FAIRSEQ: "post_extract_proj.weight",
    TORCHAUDIO: "encoder.feature_projection.projection.weight",
    HUGGING_FACE: "feature_projection.projection.weight",
}
# What a fine-tuned or wrapped model puts before all names of the encoder.
PREFIXES = ("module.", "hubert.", "wav2vec2.", "w2v_encoder.w2v_model.", "encoder.w2v_model.")
# Parts that are no part of the encoder.
LEFT_OUT = {
    HUGGING_FACE: r"masked_spec_embed|lm_head\..*|projector\..*|classifier\..*|layer_weights",
    FAIRSEQ: r"mask_emb|label_embs_concat|final_proj\..*|w2v_encoder\.proj\..*|encoder\.proj\..*",
    TORCHAUDIO: r"mask_generator\.mask_embedding|logit_generator\..*|aux\..*",
}
# Their name, as a pattern for its beginning, and ours; the first that fits is taken.
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
# Spellings of the position convolution's weight norm before torch had parametrizations.
WEIGHT_NORM = {
    "encoder.pos_conv_embed.conv.weight_g": "encoder.pos_conv_embed.conv.parametrizations.weight.original0",
    "encoder.pos_conv_embed.conv.weight_v": "encoder.pos_conv_embed.conv.parametrizations.weight.original1",
}
HEAD_SIZE = 64  # of every released HuBERT: weights do not tell how many heads share them


def to_our_names(weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """The encoder's weights under our names; names that fit no rule stay as they are."""
    for prefix in PREFIXES:
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    family = next((family for family, mark in MARKS.items() if mark in weights), None)
    if family is None:
        raise UserError(
            f"{source}: no HuBERT encoder under names of {', '.join(NAMES)}: neither {' nor '.join(MARKS.values())} is "
            f"among its {len(weights)} weights, which begin {', '.join(sorted(weights)[:3]) or 'nowhere'}"
        )
    left_out = re.compile(LEFT_OUT[family])
    return {our_name(name, family): tensor for name, tensor in weights.items() if not left_out.fullmatch(name)}


def our_name(name: str, family: str) -> str:
    for pattern, ours in NAMES[family]:
        renamed, found = re.subn(f"^{pattern}", ours, name)
        if found:
            name = renamed
            break
    return WEIGHT_NORM.get(name, name)


def fields_from_shapes(weights: dict[str, Tensor], source: str) -> dict[str, Any]:
    """Sizes of our EncoderConfig, read from weights under our names; heads are of 64, as in all released HuBERTs."""
    found = sizes_from_shapes(weights, source)
    hidden = found["hidden_size"]
    if hidden % HEAD_SIZE:
        raise UserError(
            f"{source}: a width of {hidden} is not made of heads of {HEAD_SIZE}: put the model's config.json beside it"
        )
    return found | {"heads": hidden // HEAD_SIZE}


def sizes_from_shapes(weights: dict[str, Tensor], source: str) -> dict[str, Any]:
    """Every size that the weights tell: all but the number of heads."""
    try:
        hidden, channels = weights["feature_projection.projection.weight"].shape
        position = weights["encoder.pos_conv_embed.conv.parametrizations.weight.original1"]
        inner = weights["encoder.layers.0.feed_forward.intermediate_dense.weight"].shape[0]
        _, width, kernel = position.shape
        groups = hidden // width
    except KeyError as error:
        raise UserError(f"{source}: weights do not fit: missing {error.args[0]}") from error
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise UserError(f"{source}: weights do not fit: their shapes are of no encoder") from error
    numbers = [int(found[1]) for name in weights if (found := re.match(r"encoder\.layers\.(\d+)\.", name))]
    return {
        "hidden_size": hidden,
        "layers": max(numbers) + 1,
        "inner_size": inner,
        "conv_channels": channels,
        "position_kernel": kernel,
        "position_groups": groups,
    }
