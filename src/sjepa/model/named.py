"""Find encoders by name or path. Some encoders ship with the package, one folder each."""

from pathlib import Path

from sjepa.errors import UserError, suggestion
from sjepa.model.encoder_folder import EncoderFolder

WEIGHTS = Path(__file__).parent.parent / "weights"


def encoder_names() -> list[str]:
    """Return the names of the encoders that ship with the package."""
    return sorted(folder.name for folder in WEIGHTS.glob("*") if EncoderFolder(folder).weights.is_file())


def resolve_encoder(source: str | Path, others: str = "a file of weights") -> Path:
    """Return a path that exists, or else the folder of a shipped encoder with this name.

    `others` lists what else the caller accepts, for the error message.
    """
    path, names = Path(source), encoder_names()
    if path.exists():
        return path
    if str(source) in names:
        return WEIGHTS / str(source)
    shipped = (
        f"the encoders that ship with sjepa are {', '.join(names)}" if names else "no encoder ships with sjepa yet"
    )
    meant = suggestion(str(source), names)
    raise UserError(f"there is no encoder {source}{meant}: give a run, an encoder folder or {others}; {shipped}")
