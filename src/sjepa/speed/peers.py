"""Other implementations at the same size, timed on the same batch in the same process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE
from sjepa.config import Config
from sjepa.model.formats import to_hugging_face
from sjepa.speed.timing import time_call
from sjepa.train.compute import autocast

Figures = dict[str, float] | str


def time_training(
    work: Callable[[], Tensor], parameters: list[Any], clean: Tensor, config: Config, device: torch.device
) -> Figures:
    """Time forward pass, backward pass and optimizer step."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def step() -> None:
        with autocast(config, device):
            loss = work()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    taken = time_call(step, device, 10, 4)
    return {"ms": taken, "audio_per_second": clean.numel() / SAMPLE_RATE / taken * 1e3}


def time_hugging_face(config: Config, clean: Tensor, mask: Tensor, device: torch.device) -> Figures:
    """Time the encoder of transformers, without predictor, head, targets or target encoder."""
    try:
        import transformers
    except ImportError:
        return "not installed: pip install transformers"
    settings: Any = transformers.HubertConfig(**to_hugging_face(config.encoder) | {"attn_implementation": "sdpa"})
    model: Any = transformers.HubertModel(settings)
    model.to(device).train()

    def loss() -> Tensor:
        hidden: Tensor = model(clean).last_hidden_state
        return hidden.float().square().mean()

    return time_training(loss, list(model.parameters()), clean, config, device)


def time_torchaudio(config: Config, clean: Tensor, mask: Tensor, device: torch.device) -> Figures:
    """Time torchaudio's HuBERT pre-training model: encoder, masking, projections and loss, with random labels."""
    try:
        import torchaudio
    except (ImportError, OSError):
        return "not installed: pip install torchaudio"
    encoder = config.encoder
    model = torchaudio.models.hubert_pretrain_model(
        extractor_mode="group_norm", extractor_conv_layer_config=None, extractor_conv_bias=False,
        encoder_embed_dim=encoder.hidden_size, encoder_projection_dropout=0.1,
        encoder_pos_conv_kernel=encoder.position_kernel, encoder_pos_conv_groups=encoder.position_groups,
        encoder_num_layers=encoder.layers, encoder_num_heads=encoder.heads, encoder_attention_dropout=0.1,
        encoder_ff_interm_features=encoder.inner_size, encoder_ff_interm_dropout=0.1, encoder_dropout=0.1,
        encoder_layer_norm_first=False, encoder_layer_drop=0.05, mask_prob=0.8, mask_selection="static",
        mask_other=0.0, mask_length=10, no_mask_overlap=False, mask_min_space=1, mask_channel_prob=0.0,
        mask_channel_selection="static", mask_channel_other=0.0, mask_channel_length=10, no_mask_channel_overlap=False,
        mask_channel_min_space=1, skip_masked=False, skip_nomask=False, num_classes=config.phases[0].k,
        final_dim=256, feature_grad_mult=0.1,
    ).to(device).train()  # fmt: skip
    labels = torch.randint(config.phases[0].k, mask.shape, device=device)
    lengths = torch.full((len(clean),), clean.shape[1], device=device)

    def loss() -> Tensor:
        masked, unmasked, penalty = model(clean, labels, lengths)
        total: Tensor = masked.float().logsumexp(1).mean() + unmasked.float().logsumexp(1).mean() + penalty
        return total

    return time_training(loss, list(model.parameters()), clean, config, device)


PEERS: dict[str, Callable[[Config, Tensor, Tensor, torch.device], Figures]] = {
    "hf": time_hugging_face,
    "torchaudio": time_torchaudio,
}
