"""Files that are there whole or not at all, and the folders they go to."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError

if TYPE_CHECKING:  # commands that need no torch do without it
    from torch import Tensor


def write_whole(path: Path, text: str) -> None:
    """Write under another name first, so that a kill or a full disk cannot leave half a file."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where it holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write safetensors whole, for all whom the umask lets read; the library writes for the owner alone."""
    import safetensors
    import safetensors.torch

    partial = path.with_name(f"{path.name}.partial")
    partial.touch()
    mode = partial.stat().st_mode
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        safetensors.torch.save_file(plain, partial, metadata=metadata)
    except safetensors.SafetensorError as error:  # a full disk, for one; the library does not name the file
        partial.unlink()
        raise OSError(errno.EIO, str(error), str(path)) from error
    partial.chmod(mode)
    os.replace(partial, path)


def refuse_below_file(path: Path) -> None:
    """Refuse a path that leads through a file, before any work is done for it."""
    nearest = next((parent for parent in path.parents if parent.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise UserError(f"{nearest} is a file: nothing can be written below it")


def is_used(folder: Path) -> bool:
    """Whether a folder for results has something in it; refuses a file in its place."""
    refuse_file(folder)
    return folder.exists() and any(folder.iterdir())


def refuse_file(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder")


def refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder: give a file")
