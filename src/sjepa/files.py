"""Files that are there whole or not at all, and the folders they go to."""

import os
from pathlib import Path

from sjepa.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """Write under another name first, so that a kill or a full disk cannot leave half a file."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def is_used(folder: Path) -> bool:
    """Whether a folder for results has something in it; refuses a file in its place."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder")
    return folder.exists() and any(folder.iterdir())
