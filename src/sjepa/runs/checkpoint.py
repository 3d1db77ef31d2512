"""Checkpoints: one folder each, written whole or not at all, safetensors and JSON only.

All randomness is drawn from (seed, step) or (seed, epoch, batch), so the random state is the step and the loader's
position.
"""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError
from sjepa.fields import NUMBER, SURPRISES, TEXT, WHOLE, Kind, brief, check_fields, list_of, optional, require, table_of
from sjepa.files import atomic_folder, read_json, save_tensors
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


STATE = {
    "position": Kind("two whole numbers", lambda value: list_of(WHOLE).accepts(value) and len(value) == 2),
    "ranks": list_of(NUMBER),
    "bad_utterances": WHOLE,
    "phase": WHOLE,
    "log_bytes": WHOLE,
}
SINCE = {"active_layer": optional(WHOLE)}  # fields that older checkpoints lack
TRAINING_PARTS = ("model", "targets", "optimizer", "meter")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Everything in a checkpoint but its tensors; raises DamagedError if it is not as it was written."""
    file = state_file(checkpoint)
    try:
        state = read_json(file)
        step = require(state, "step", WHOLE, file.name)
        names = require(state, "files", table_of(TEXT), file.name)
        check_fields(state, STATE | SINCE, file.name)
    except (OSError, UserError) as error:
        raise DamagedError(str(error)) from error
    if not checkpoint.name.endswith(f"-{step:08d}"):
        raise DamagedError(f"{file.name}: step is {step}")
    if any(Path(name).name != name for name in names):
        raise DamagedError(f"{file.name}: files of another folder")
    return state


def check_training(parts: "Parts", state: dict[str, Any]) -> None:
    """Raise DamagedError if something is missing with which training continues."""
    missing = [name for name in STATE if name not in state] + [name for name in TRAINING_PARTS if name not in parts]
    if missing:
        raise DamagedError(f"it has no {', '.join(missing)}")


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
            if not (folder / name).is_file() or digest(folder / name) != written:
                raise DamagedError(f"{name} is not what was written")
            parts[name.removesuffix(".safetensors")] = safetensors.torch.load_file(folder / name)
        return parts, state
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise DamagedError(str(error) or type(error).__name__) from error


def load_sound(run: RunFolder, say: Any = print, training: bool = False) -> Iterator[tuple["Parts", dict[str, Any]]]:
    """Sound checkpoints, the newest first; reports each damaged one. `training` asks for all that training needs."""
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


def load_latest(run: RunFolder, say: Any = print, training: bool = False) -> tuple["Parts", dict[str, Any]] | None:
    """The newest sound checkpoint; none if there is no checkpoint at all."""
    found = next(load_sound(run, say, training), None)
    if found is None and run.checkpoint_steps:
        raise UserError(f"all checkpoints in {run.checkpoints} are damaged; start again with another --out")
    return found


@contextmanager
def refuse_unfit(run: RunFolder) -> Iterator[None]:
    """Say so if a checkpoint does not fit the run's config."""
    try:
        yield
    except (RuntimeError, *SURPRISES) as error:  # torch's word for other shapes is RuntimeError
        reason = brief(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        raise UserError(f"{run}: its checkpoint does not fit {run.config_file.name} ({reason})") from error


def prune(run: RunFolder, keep: int, always: set[int], every: int = 0) -> None:
    """Remove all checkpoints but the newest `keep` and those of steps in `always` or at multiples of `every`."""
    kept = always | {step for step in run.checkpoint_steps if every and step % every == 0}
    for step in [step for step in run.checkpoint_steps[keep:] if step not in kept]:
        shutil.rmtree(run.checkpoint(step), ignore_errors=True)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Writer:
    """Writes in the background, one thing at a time, while training goes on."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.failure: Exception | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task once the one before has ended; raises the failure of that one."""
        self.wait()

        def work() -> None:
            try:
                task()
            except Exception as error:  # an exception that ends with its thread would lose checkpoints in silence
                self.failure = error

        self.thread = threading.Thread(target=work, name="checkpoint")
        self.thread.start()

    def join(self) -> None:
        """Wait until nothing is being written, whether it succeeded or not."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def wait(self) -> None:
        """Wait until nothing is being written; raises the failure of what was."""
        self.join()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


class Staging:
    """Host copies of a run's tensors, allocated once, so that training can go on while they are written."""

    def __init__(self) -> None:
        self.copies: Parts = {}

    def copy(self, parts: "Parts") -> "Parts":
        """The tensors as they are now; valid until the next call. Nothing may be reading the last ones any more."""
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
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.copies = copied
        return copied
