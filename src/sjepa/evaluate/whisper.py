"""The encoder of Whisper, from OpenAI's weights or a Hugging Face folder, on utterances of any length.

The input of Whisper is a window of 30 seconds. An utterance is padded with zeros to 30 seconds, as in Whisper itself,
and only the frames that start within it are kept. Features depend on padding exactly as in Whisper, and not on the
batch. A longer utterance is cut into windows of 30 seconds without overlap.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.fields import WHOLE, require
from sjepa.files import read_json
from sjepa.model.encoder_folder import WEIGHT_FILES, EncoderFolder
from sjepa.model.formats import load_strictly, read_weights

WEIGHTS = "encoder.safetensors"  # the encoder under OpenAI's names, including the mel filters
WINDOW, HOP, STRIDE, FRAMES = 480_000, 160, 320, 1500
HEAD = 64  # width of an attention head, in every released Whisper
BATCH = 8  # windows per forward pass
# Names of the parts of a layer: Hugging Face to OpenAI.
PARTS = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attn, self.attn_ln = Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x))
        return x + cast(Tensor, self.mlp(self.mlp_ln(x)))


class WhisperEncoder(nn.Module):
    """Whisper's encoder. Returns the input of block 0 and each block's output, the last one after the final norm."""

    positional_embedding: Tensor
    mel_filters: Tensor

    def __init__(self, mels: int, width: int, layers: int, heads: int):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.zeros(FRAMES, width))
        self.register_buffer("mel_filters", torch.zeros(mels, 201))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_post = nn.LayerNorm(width)

    def forward(self, waveforms: Tensor) -> list[Tensor]:  # (B, 480000) -> states of (B, 1500, D)
        x = F.gelu(self.conv2(F.gelu(self.conv1(self.log_mel(waveforms)))))
        x = x.transpose(1, 2) + self.positional_embedding
        states = [x]
        for block in self.blocks:
            x = block(x)
            states.append(x)
        return [*states[:-1], self.ln_post(x)]

    def log_mel(self, waveforms: Tensor) -> Tensor:
        """Compute Whisper's input (B, N) -> (B, M, N / 160), clipped at 8 below the maximum of each window."""
        with torch.autocast(waveforms.device.type, enabled=False):
            window = torch.hann_window(400, device=waveforms.device)
            spectrum = torch.stft(waveforms, 400, HOP, window=window, return_complex=True)[..., :-1].abs() ** 2
            x = (self.mel_filters @ spectrum).clamp(min=1e-10).log10()
            x = torch.maximum(x, x.amax((1, 2), keepdim=True) - 8.0)
            return (x + 4.0) / 4.0


def count_frames(samples: int) -> int:
    """Count the frames that start within an utterance."""
    return -(-samples // STRIDE)


def extract_states(network: WhisperEncoder, utterances: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return the hidden states (S, T, D) of each utterance, computed in windows."""
    windows = [
        (index, utterance[first : first + WINDOW])
        for index, utterance in enumerate(utterances)
        for first in range(0, len(utterance), WINDOW)
    ]
    found: list[list[Tensor]] = [[] for _ in utterances]
    for first in range(0, len(windows), BATCH):
        group = windows[first : first + BATCH]
        padded = np.stack([np.pad(samples, (0, WINDOW - len(samples))) for _, samples in group])
        states = torch.stack(network(torch.from_numpy(padded).to(device)), dim=1)  # (B, S, T, D)
        for (index, samples), state in zip(group, states, strict=True):
            found[index].append(state[:, : count_frames(len(samples))])
    return [torch.cat(parts, dim=1) for parts in found]


def load_whisper(folder: Path, fresh: bool) -> WhisperEncoder:
    """Load the weights of a folder, or initialise new ones in the same architecture."""
    heads = None
    if (folder / WEIGHTS).is_file():
        weights = {name: tensor.float() for name, tensor in read_weights(folder / WEIGHTS).items()}
        filters = next((name for name in weights if name.startswith("mel") and name != "mel_filters"), "")
        if filters:
            weights["mel_filters"] = weights.pop(filters)
    else:
        config = EncoderFolder(folder).config_file
        heads = require(read_json(config), "encoder_attention_heads", WHOLE, str(config))
        weights = read_hugging_face(folder)
    try:
        width, mels, _ = weights["conv1.weight"].shape
        layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
        position = weights["positional_embedding"]
        if "mel_filters" not in weights:
            weights["mel_filters"] = make_mel_filters(mels)
    except (KeyError, ValueError) as error:
        missing = error.args[0] if isinstance(error, KeyError) else "conv1.weight"
        raise UserError(f"{folder}: these are not weights of Whisper's encoder: {missing} is missing") from None
    heads = width // HEAD if heads is None else heads
    if not heads or width % heads:
        raise UserError(f"{folder}: {heads} attention heads do not divide the width of {width}")
    torch.manual_seed(0)
    network = WhisperEncoder(mels, width, layers, heads)
    if fresh:
        network.positional_embedding, network.mel_filters = position, weights["mel_filters"]
    else:
        load_strictly(network, weights, str(folder))
    return network


def read_hugging_face(folder: Path) -> dict[str, Tensor]:
    """Read the encoder of a Hugging Face folder under OpenAI's names."""
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise UserError(f"{folder} cannot be loaded: it has neither {' nor '.join(WEIGHT_FILES)}")
    weights = {}
    for file in files:
        for name, tensor in read_weights(file).items():
            _, marker, inner = name.rpartition("encoder." if name.startswith(("encoder.", "model.encoder.")) else "\0")
            if marker:
                weights[rename_weight(inner)] = tensor.float()
    return weights


def rename_weight(name: str) -> str:
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        part, _, kind = rest.rpartition(".")
        return f"blocks.{number}.{PARTS.get(part, part)}.{kind}"
    return name.replace("embed_positions.weight", "positional_embedding").replace("layer_norm.", "ln_post.")


def make_mel_filters(mels: int) -> Tensor:
    try:
        import transformers
    except ImportError as error:
        raise UserError("this encoder needs transformers: pip install 'sjepa[superb]'") from error
    filters: Any = transformers.WhisperFeatureExtractor(feature_size=mels).mel_filters
    return torch.from_numpy(np.asarray(filters, dtype=np.float32).T.copy())
