"""Checkpoints: one folder each, written atomically, as safetensors and JSON.

All random numbers depend on (seed, step) or (seed, epoch, batch), so the random state is the step and the position of
the loader.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError
from sjepa.fields import (
    NUMBER,
    SURPRISES,
    TEXT,
    WHOLE,
    Kind,
    check_fields,
    list_of,
    optional,
    require,
    shorten,
    table_of,
)
from sjepa.files import atomic_folder, hash_file, read_json, save_tensors
from sjepa.progress import say
from sjepa.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    Parts = dict[str, dict[str, Tensor]]
    """Tensors by part (model, targets, optimizer, meter) and name."""


class DamagedError(Exception):
    """A checkpoint is damaged: its contents differ from what was written."""


def state_file(checkpoint: Path) -> Path:
    """Return the JSON file of a checkpoint. A checkpoint without it is incomplete."""
    return checkpoint / "state.json"


STATE = {
    "position": Kind("two whole numbers", lambda value: list_of(WHOLE).accepts(value) and len(value) == 2),
    "ranks": list_of(NUMBER),
    "active_layer": optional(WHOLE),
    "bad_utterances": WHOLE,
    "phase": WHOLE,
    "log_bytes": WHOLE,
}
LATER_STATE = {"held_layer": optional(WHOLE), "best_masked": NUMBER}  # missing in checkpoints of earlier versions
TRAINING_PARTS = ("model", "targets", "optimizer", "meter")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read everything in a checkpoint except its tensors. Raise DamagedError if it is invalid."""
    file = state_file(checkpoint)
    try:
        state = read_json(file)
        step = require(state, "step", WHOLE, file.name)
        names = require(state, "files", table_of(TEXT), file.name)
        check_fields(state, STATE | LATER_STATE, file.name)
    except (OSError, UserError) as error:
        raise DamagedError(str(error)) from error
    if not checkpoint.name.endswith(f"-{step:08d}"):
        raise DamagedError(f"{file.name}: step is {step}")
    if any(Path(name).name != name for name in names):
        raise DamagedError(f"{file.name}: it names files in another folder")
    return state


def check_training(parts: "Parts", state: dict[str, Any]) -> None:
    """Raise DamagedError if something that training needs is missing."""
    missing = [name for name in STATE if name not in state] + [name for name in TRAINING_PARTS if name not in parts]
    if missing:
        raise DamagedError(f"it has no {', '.join(missing)}")


def save(run: RunFolder, step: int, tensors: "Parts", state: dict[str, Any]) -> None:
    """Write a checkpoint: one safetensors file per part. The folder gets its name when it is complete."""
    try:
        with atomic_folder(run.checkpoint(step), "replace") as folder:
            files = {}
            for name, part in tensors.items():
                path = folder / f"{name}.safetensors"
                save_tensors(path, part)
                files[path.name] = hash_file(path)
            state_file(folder).write_text(json.dumps(state | {"step": step, "files": files}, indent=1) + "\n")
    except OSError as error:
        raise make_write_error("the checkpoint", step, run, error) from error


def make_write_error(what: str, step: int, run: RunFolder, error: OSError) -> UserError:
    """Return the error for a failed write, with the last valid checkpoint."""
    steps = run.checkpoint_steps
    left = f"the last good checkpoint is at step {steps[0]}" if steps else "there is no checkpoint yet"
    return UserError(f"cannot write {what} of step {step} in {run}: {error}; {left}")


def load(folder: Path) -> tuple["Parts", dict[str, Any]]:
    """Load parts and state of a checkpoint. Raise DamagedError if a file differs from what was written."""
    import safetensors
    import safetensors.torch

    try:
        state = read_state(folder)
        parts = {}
        for name, written in state["files"].items():
            if not (folder / name).is_file() or hash_file(folder / name) != written:
                raise DamagedError(f"{name} differs from what was written")
            parts[name.removesuffix(".safetensors")] = safetensors.torch.load_file(folder / name)
        return parts, state
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise DamagedError(str(error) or type(error).__name__) from error


def load_valid(run: RunFolder, training: bool = False) -> Iterator[tuple["Parts", dict[str, Any]]]:
    """Yield valid checkpoints, the newest first, and report damaged ones. `training` requires all training state."""
    for step in run.checkpoint_steps:
        folder = run.checkpoint(step)
        try:
            found = load(folder)
            if training:
                check_training(*found)
        except DamagedError as error:
            say(f"checkpoint {folder} is damaged ({error}); trying the one before it")
        else:
            yield found


def load_latest(run: RunFolder, training: bool = False) -> tuple["Parts", dict[str, Any]] | None:
    """Return the newest valid checkpoint, or None if there is no checkpoint."""
    found = next(load_valid(run, training), None)
    if found is None and run.checkpoint_steps:
        raise UserError(f"all checkpoints in {run.checkpoints} are damaged; start again with another --out")
    return found


@contextmanager
def refuse_unfit(run: RunFolder) -> Iterator[None]:
    """Raise UserError if a checkpoint does not match the config of the run."""
    try:
        yield
    except (RuntimeError, *SURPRISES) as error:  # torch raises RuntimeError for wrong shapes
        from sjepa.torch_private import is_failed_allocation, is_gpu_failure

        if isinstance(error, RuntimeError) and (is_failed_allocation(error) or is_gpu_failure(error)):
            raise
        reason = shorten(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        raise UserError(f"{run}: its checkpoint does not fit {run.config_file.name} ({reason})") from error


def prune(run: RunFolder, written: int, keep: int, always: set[int], every: int = 0) -> None:
    """Remove checkpoints except the newest `keep`, those of steps in `always`, and those at multiples of `every`.

    `written` is the step of the one just written. Later ones are damaged: the run continued from before them.
    """
    steps = run.checkpoint_steps
    later, earlier = [step for step in steps if step > written], [step for step in steps if step <= written]
    kept = always | {step for step in earlier if every and step % every == 0}
    for step in later + [step for step in earlier[keep:] if step not in kept]:
        shutil.rmtree(run.checkpoint(step), ignore_errors=True)


class Writer:
    """Run writes in the background, one at a time, while training continues."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.failure: Exception | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Start a task after the previous one has ended.

        If the previous one failed, run this one in the foreground. `raise_repeated` then raises its error.
        """
        self.join()

        def work() -> None:
            try:
                task()
            except Exception as error:  # an exception that ends with its thread would lose checkpoints in silence
                self.failure = error

        if self.failure is not None:
            say(f"A checkpoint could not be written ({self.failure}); trying again")
            self.failure = None
            work()
        else:
            self.thread = threading.Thread(target=work, name="checkpoint")
            self.thread.start()

    def raise_repeated(self) -> None:
        """Raise the error of a write in the foreground, the second in a row."""
        if self.thread is None:
            self.wait()

    def join(self) -> None:
        """Wait until the write has ended. Ignore its error."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def wait(self) -> None:
        """Wait until the write has ended. Raise its error."""
        self.join()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


class Staging:
    """Copies of tensors on the host, allocated once, so that training can continue while they are written."""

    def __init__(self) -> None:
        self.copies: Parts = {}

    def copy(self, parts: "Parts") -> "Parts":
        """Copy the tensors. The copies are valid until the next call, so nothing may still read the previous ones."""
        import torch

        copied: Parts = {}
        for part, tensors in parts.items():
            kept = self.copies.get(part, {})
            copied[part] = {}
            for name, tensor in tensors.items():
                place = kept.get(name)
                if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
                    place = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
                copied[part][name] = place.copy_(tensor.detach(), non_blocking=True)
        if any(tensor.is_cuda for tensors in parts.values() for tensor in tensors.values()):
            torch.cuda.synchronize()
        self.copies = copied
        return copied
