"""An encoder folder: the names of its files. Needs no torch.

    model.safetensors         weights under Hugging Face's names; other programs may write pytorch_model.bin
    config.json               sizes and architecture, as Hugging Face stores them
    preprocessor_config.json  what the encoder expects of waveforms
    clusters.safetensors      the mixture and the cluster head; only in folders that sjepa wrote
    card.json                 licence, credit and results, for the model card; only in folders of `sjepa export`

No other module knows these names. `runs.locate` finds the encoder folder of a run.
"""

import json
from pathlib import Path

from sjepa.fields import SURPRISES

# Files of weights. The first that exists is read.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
CONFIG_FILE = "config.json"
CLUSTERS_FILE = "clusters.safetensors"
CLUSTERS_HEADER = "clusters"  # key in the metadata of clusters.safetensors; the value is a JSON object


class EncoderFolder:
    """The folder of an encoder, which may not exist yet."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def weights(self) -> Path:
        """The weights, as sjepa writes them."""
        return self.path / WEIGHT_FILES[0]

    @property
    def config_file(self) -> Path:
        return self.path / CONFIG_FILE

    @property
    def preprocessor(self) -> Path:
        return self.path / "preprocessor_config.json"

    @property
    def clusters(self) -> Path:
        """The mixture and the cluster head."""
        return self.path / CLUSTERS_FILE

    @property
    def card(self) -> Path:
        """Licence, credit and results; see card_facts.py."""
        return self.path / "card.json"

    @property
    def exists(self) -> bool:
        """Whether this is an encoder folder, of any architecture."""
        return self.config_file.is_file()

    def find_weights(self) -> Path | None:
        """Return the file of weights, in whichever format it is."""
        return next((self.path / name for name in WEIGHT_FILES if (self.path / name).is_file()), None)

    def recorded_fingerprint(self) -> str:
        """Return the fingerprint of the weights that the clusters belong to. Empty if it is not known."""
        import safetensors

        try:
            with safetensors.safe_open(self.clusters, "np") as opened:
                return str(json.loads((opened.metadata() or {})[CLUSTERS_HEADER])["encoder"])
        except (OSError, safetensors.SafetensorError, *SURPRISES):
            return ""


def find_encoder_files(place: Path) -> EncoderFolder:
    """Return an encoder folder, given its path or that of a file of weights in it."""
    return EncoderFolder(place.parent if place.is_file() else place)
