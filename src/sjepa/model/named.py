"""Encoders by name or path. Some encoders ship with the package, one folder each, and are found without a network."""

from pathlib import Path

from sjepa.errors import UserError

WEIGHTS = Path(__file__).parent.parent / "weights"


def encoder_names() -> list[str]:
    """Names of the encoders that ship with the package."""
    return sorted(file.parent.name for file in WEIGHTS.glob("*/model.safetensors"))


def resolve_encoder(source: str | Path, others: str = "a file of weights") -> Path:
    """A path that exists as it is, or the folder of an encoder that ships with the package; a path comes first.

    `others` is what else the caller accepts, for the refusal.
    """
    path, names = Path(source), encoder_names()
    if path.exists():
        return path
    if str(source) in names:
        return WEIGHTS / str(source)
    shipped = (
        f"the encoders that ship with sjepa are {', '.join(names)}" if names else "no encoder ships with sjepa yet"
    )
    raise UserError(f"there is no encoder {source}: give a run, an encoder folder or {others}; {shipped}")
