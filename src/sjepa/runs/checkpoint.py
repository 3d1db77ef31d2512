"""Checkpoints: a folder each, written whole or not at all, safetensors and JSON only.

All randomness is drawn anew from (seed, step) or (seed, epoch, batch), so the random state is the step and the
loader's position.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from sjepa.errors import UserError
from sjepa.files import save_tensors


class DamagedError(Exception):
    """A checkpoint that does not hold what was written."""


def folder_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def steps_saved(run: Path) -> list[int]:
    """Steps with a checkpoint, the latest first."""
    names = (path.name for path in (run / "checkpoints").glob("step-*") if path.is_dir())
    return sorted((int(name.removeprefix("step-")) for name in names if name[5:].isdigit()), reverse=True)


def save(run: Path, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    """Write a checkpoint: one safetensors file a part. The folder appears under its name only when it is complete."""
    final = folder_of(run, step)
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        files = {}
        for name, part in tensors.items():
            path = partial / f"{name}.safetensors"
            save_tensors(path, part)
            files[path.name] = digest(path)
        text = json.dumps(state | {"step": step, "files": files}, indent=1) + "\n"
        (partial / "state.json").write_text(text)
        for path in partial.iterdir():
            flush(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        flush(final.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise cannot_write("the checkpoint", step, run, error) from error


def cannot_write(what: str, step: int, run: Path, error: OSError) -> UserError:
    saved = steps_saved(run)
    left = f"the last good checkpoint is at step {saved[0]}" if saved else "there is no checkpoint yet"
    return UserError(f"cannot write {what} of step {step} in {run}: {error}; {left}")


def load(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Parts and state of a checkpoint; raises DamagedError if a file differs from what was written."""
    try:
        state = json.loads((folder / "state.json").read_text())
        parts = {}
        for name, written in state["files"].items():
            if digest(folder / name) != written:
                raise DamagedError(f"{name} is not what was written")
            parts[name.removesuffix(".safetensors")] = safetensors.torch.load_file(folder / name)
        return parts, state
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise DamagedError(str(error) or type(error).__name__) from error


def load_sound(run: Path, say: Any = print) -> Iterator[tuple[dict[str, dict[str, Tensor]], dict[str, Any]]]:
    """Sound checkpoints, the newest first; says so when one is damaged."""
    for step in steps_saved(run):
        try:
            yield load(folder_of(run, step))
        except DamagedError as error:
            say(f"checkpoint {folder_of(run, step)} is damaged ({error}); trying the one before it")


def load_latest(run: Path, say: Any = print) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """The newest sound checkpoint; none where there is no checkpoint at all."""
    found = next(load_sound(run, say), None)
    if found is None and steps_saved(run):
        raise UserError(f"all checkpoints in {run / 'checkpoints'} are damaged; start again with another --out")
    return found


def prune(run: Path, keep: int, always: set[int]) -> None:
    for step in [step for step in steps_saved(run)[keep:] if step not in always]:
        shutil.rmtree(folder_of(run, step), ignore_errors=True)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Ask the disk to keep it before the name changes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
