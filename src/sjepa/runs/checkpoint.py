"""Checkpoints: one folder each, written whole or not at all, safetensors and JSON only.

All randomness is drawn from (seed, step) or (seed, epoch, batch), so the random state is the step and the loader's
position.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError
from sjepa.files import atomic_folder, save_tensors
from sjepa.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    Parts = dict[str, dict[str, Tensor]]
    """Tensors by part (model, targets, optimizer, meter) and name."""


class DamagedError(Exception):
    """A checkpoint that does not hold what was written."""


def state_file(checkpoint: Path) -> Path:
    """The JSON of a checkpoint; a checkpoint without it is not whole."""
    return checkpoint / "state.json"


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Everything in a checkpoint but its tensors."""
    return json.loads(state_file(checkpoint).read_text())


def save(run: RunFolder, step: int, tensors: "Parts", state: dict[str, Any]) -> None:
    """Write a checkpoint: one safetensors file per part. The folder appears under its name when it is complete."""
    try:
        with atomic_folder(run.checkpoint(step), "replace") as folder:
            files = {}
            for name, part in tensors.items():
                path = folder / f"{name}.safetensors"
                save_tensors(path, part)
                files[path.name] = digest(path)
            state_file(folder).write_text(json.dumps(state | {"step": step, "files": files}, indent=1) + "\n")
    except OSError as error:
        raise cannot_write("the checkpoint", step, run, error) from error


def cannot_write(what: str, step: int, run: RunFolder, error: OSError) -> UserError:
    steps = run.checkpoint_steps
    left = f"the last good checkpoint is at step {steps[0]}" if steps else "there is no checkpoint yet"
    return UserError(f"cannot write {what} of step {step} in {run}: {error}; {left}")


def load(folder: Path) -> tuple["Parts", dict[str, Any]]:
    """Parts and state of a checkpoint; raises DamagedError if a file differs from what was written."""
    import safetensors
    import safetensors.torch

    try:
        state = read_state(folder)
        parts = {}
        for name, written in state["files"].items():
            if digest(folder / name) != written:
                raise DamagedError(f"{name} is not what was written")
            parts[name.removesuffix(".safetensors")] = safetensors.torch.load_file(folder / name)
        return parts, state
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise DamagedError(str(error) or type(error).__name__) from error


def load_sound(run: RunFolder, say: Any = print) -> Iterator[tuple["Parts", dict[str, Any]]]:
    """Sound checkpoints, the newest first; reports each damaged one."""
    for step in run.checkpoint_steps:
        folder = run.checkpoint(step)
        try:
            yield load(folder)
        except DamagedError as error:
            say(f"checkpoint {folder} is damaged ({error}); trying the one before it")


def load_latest(run: RunFolder, say: Any = print) -> tuple["Parts", dict[str, Any]] | None:
    """The newest sound checkpoint; none if there is no checkpoint at all."""
    found = next(load_sound(run, say), None)
    if found is None and run.checkpoint_steps:
        raise UserError(f"all checkpoints in {run.checkpoints} are damaged; start again with another --out")
    return found


def prune(run: RunFolder, keep: int, always: set[int], every: int = 0) -> None:
    """Remove all checkpoints but the newest `keep` and those of steps in `always` or at multiples of `every`."""
    kept = always | {step for step in run.checkpoint_steps if every and step % every == 0}
    for step in [step for step in run.checkpoint_steps[keep:] if step not in kept]:
        shutil.rmtree(run.checkpoint(step), ignore_errors=True)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
