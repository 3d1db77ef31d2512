"""S-JEPA: pre-train a compact speech encoder against soft cluster targets."""

from sjepa.errors import UserError
from sjepa.model.encoder import Encoder, EncoderConfig
from sjepa.targets.gmm import DiagonalGMM

__version__ = "0.1.0"
__all__ = ["DiagonalGMM", "Encoder", "EncoderConfig", "UserError", "__version__"]
