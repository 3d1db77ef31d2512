"""S-JEPA: pre-train a compact speech encoder against soft cluster targets.

The public names, which stay as they are between minor versions:

    Encoder        an encoder: `from_pretrained`, hidden states, posteriors, units, `stream`
    EncoderConfig  its size
    Clusters       the mixture and the cluster head that belong to an encoder
    DiagonalGMM    a Gaussian mixture with diagonal covariances
    load_preset    a pre-training config by the name of a preset or the path of a TOML file
    pretrain       train an encoder, or continue
    RunFolder      the folder of a run: config, metrics, checkpoints
    UserError      the exception for invalid inputs, with a message of one line
"""

from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError
from sjepa.version import __version__

if TYPE_CHECKING:
    from sjepa.model.encoder_config import EncoderConfig
    from sjepa.runs.encoder import Encoder
    from sjepa.runs.folder import RunFolder
    from sjepa.settings_file import load_preset
    from sjepa.targets.clusters import Clusters
    from sjepa.targets.gmm import DiagonalGMM
    from sjepa.train.loop import pretrain

__all__ = [
    "Clusters",
    "DiagonalGMM",
    "Encoder",
    "EncoderConfig",
    "RunFolder",
    "UserError",
    "__version__",
    "load_preset",
    "pretrain",
]

# The module of each name. It is imported on first use, so that the command line answers before torch is loaded.
HOMES = {
    "Clusters": "targets.clusters",
    "DiagonalGMM": "targets.gmm",
    "Encoder": "runs.encoder",
    "EncoderConfig": "model.encoder_config",
    "RunFolder": "runs.folder",
    "load_preset": "settings_file",
    "pretrain": "train.loop",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'sjepa' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sjepa.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
