"""S-JEPA: pre-train a compact speech encoder against soft cluster targets."""

from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError

if TYPE_CHECKING:
    from sjepa.model.encoder import Encoder
    from sjepa.model.encoder_config import EncoderConfig
    from sjepa.targets.gmm import DiagonalGMM

__version__ = "0.1.0"
__all__ = ["DiagonalGMM", "Encoder", "EncoderConfig", "UserError", "__version__"]

# Where each name lives. They are imported when asked for, so that the command line answers before torch has loaded.
HOMES = {"DiagonalGMM": "targets.gmm", "Encoder": "model.encoder", "EncoderConfig": "model.encoder_config"}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'sjepa' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sjepa.{HOMES[name]}"), name)
