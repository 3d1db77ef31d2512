"""A folder that `transformers.AutoModel.from_pretrained` loads as a HubertModel."""

import json
from pathlib import Path
from typing import Any

from sjepa.audio.io import SAMPLE_RATE
from sjepa.files import write_whole
from sjepa.model import formats
from sjepa.model.encoder import Encoder

# Our encoder hears waveforms as they are. It knows which frames are padding, so the mask is worth having.
PREPROCESSOR: dict[str, Any] = {
    "feature_extractor_type": "Wav2Vec2FeatureExtractor",
    "feature_size": 1,
    "sampling_rate": SAMPLE_RATE,
    "padding_side": "right",
    "padding_value": 0.0,
    "do_normalize": False,
    "return_attention_mask": True,
}


def write_hugging_face(encoder: Encoder, folder: Path) -> None:
    """config.json, model.safetensors and preprocessor_config.json."""
    settings = formats.to_hugging_face(encoder.config) | {"dtype": "float32"}
    formats.save_folder(folder, encoder.state_dict(), settings)
    write_whole(folder / "preprocessor_config.json", json.dumps(PREPROCESSOR, indent=2) + "\n")
