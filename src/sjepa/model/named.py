"""Find encoders by name or path. Some encoders ship with the package, one folder each."""

import re
from collections.abc import Collection
from pathlib import Path

from sjepa.errors import UserError, suggestion
from sjepa.model.encoder_folder import EncoderFolder

UNTRAINED = "untrained:"  # prefix of a path: the architecture of an encoder, with random weights
WEIGHTS = Path(__file__).parent.parent / "weights"
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")  # such as facebook/hubert-base-ls960


def encoder_names() -> list[str]:
    """Return the names of the encoders that ship with the package."""
    return sorted(folder.name for folder in WEIGHTS.glob("*") if EncoderFolder(folder).weights.is_file())


def resolve_encoder(source: str | Path, baselines: Collection[str] = ()) -> Path:
    """Return a path that exists, or else the folder of a shipped encoder with this name.

    `baselines` are the names of features that the caller accepts instead of a file of weights, for the error message.
    """
    path, names = Path(source), encoder_names()
    if path.exists():
        return path
    if str(source) in names:
        return WEIGHTS / str(source)
    shipped = f"sjepa ships with {', '.join(names)}" if names else "no encoder ships with sjepa yet"
    meant = suggestion(str(source), [*names, *baselines])
    others = ", ".join(baselines) or "a file of weights"
    online = "; models on Hugging Face are not downloaded: give a local folder" if is_hub_name(path) else ""
    raise UserError(
        f"there is no encoder {source}{meant}: give a run, an encoder folder or {others}{online}; {shipped}"
    )


def is_hub_name(path: Path) -> bool:
    """Return whether a path that does not exist may be the name of a model on Hugging Face: ORGANISATION/NAME."""
    return bool(HUB_NAME.fullmatch(path.as_posix())) and not path.parent.exists()
