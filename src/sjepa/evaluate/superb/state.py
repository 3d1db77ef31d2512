"""The training state of one head, in one file that is written atomically."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.evaluate.results import flatten_settings
from sjepa.fields import SURPRISES, TABLE, WHOLE, Kind, check_fields, list_of, shorten
from sjepa.files import save_tensors
from sjepa.model.formats import select_part

SCORE = Kind("a number", lambda value: type(value) in (int, float) and not abs(value) > 1e300)  # NaN before the first
WEIGHTS = "encoder fingerprint"  # the field of an evaluation that changes with the weights, as flattened
FIELDS = {"step": WHOLE, "best_step": WHOLE, "best_score": SCORE, "curve": list_of(TABLE)}


class TrainingState:
    """Step, dev curve, best weights, and everything needed to resume."""

    def __init__(self, file: Path, identity: dict[str, Any], modules: nn.Module, optimizer: torch.optim.Optimizer):
        self.file, self.identity, self.modules, self.optimizer = file, identity, modules, optimizer
        self.step = self.best_step = 0
        self.best_score = math.nan
        self.best: dict[str, Tensor] = {}
        self.curve: list[dict[str, float]] = []

    @classmethod
    def open(
        cls, file: Path, identity: dict[str, Any], modules: nn.Module, optimizer: torch.optim.Optimizer
    ) -> "TrainingState":
        """Make a new state, or load the one in the file into the modules and the optimizer."""
        state = cls(file, identity, modules, optimizer)
        if file.is_file():
            state.load()
        return state

    def record(self, scores: dict[str, float], metric: str, lower: bool, loss: float) -> None:
        """Record dev scores. Store the weights if they are the best so far."""
        self.curve.append({"step": self.step, "loss": round(loss, 4), **scores})
        score = scores[metric]
        better = score < self.best_score if lower else score > self.best_score
        if math.isnan(self.best_score) or better:
            self.best_score, self.best_step = score, self.step
            self.best = {name: tensor.detach().clone() for name, tensor in self.modules.state_dict().items()}

    def save(self) -> None:
        tensors = {f"last.{name}": tensor for name, tensor in self.modules.state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
        self.write(tensors)

    def finish(self) -> None:
        """Save only the best weights. Training cannot be resumed afterwards."""
        self.write({})

    def write(self, tensors: dict[str, Tensor]) -> None:
        """Write the best weights and additional tensors."""
        best = {f"best.{name}": tensor for name, tensor in self.best.items()}
        about = {
            "identity": self.identity,
            "step": self.step,
            "best_step": self.best_step,
            "best_score": self.best_score,
            "curve": self.curve,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(self.file, best | tensors, metadata={"about": json.dumps(about)})

    def load(self) -> None:
        """Load the file. Raise UserError if it is damaged or belongs to another evaluation."""
        with explain_damage(self.file):
            self.restore()

    def restore(self) -> None:
        with safetensors.safe_open(self.file, "pt") as file:
            about = json.loads(file.metadata()["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        check_identity(self.file.parent.parent, about["identity"], self.identity)
        check_fields(about, FIELDS, str(self.file))
        self.step, self.best_step = about["step"], about["best_step"]
        self.best_score, self.curve = about["best_score"], about["curve"]
        self.best, last = select_part(tensors, "best."), select_part(tensors, "last.")
        self.modules.load_state_dict(last or self.best)
        adam: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, index, field = name.split(".")
                adam.setdefault(int(index), {})[field] = tensor
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": adam})


@contextmanager
def explain_damage(file: Path) -> Iterator[None]:
    """Raise UserError for the errors of a damaged file."""
    try:
        yield
    except (safetensors.SafetensorError, RuntimeError, *SURPRISES) as error:
        reason = shorten(str(error))
        raise UserError(f"{file} cannot be read ({reason}): delete it to train this head again") from error


def read_identity(file: Path) -> dict[str, Any]:
    """Return the identity of the evaluation that a stored head belongs to."""
    with explain_damage(file), safetensors.safe_open(file, "pt") as opened:
        return dict(json.loads(opened.metadata()["about"])["identity"])


def find_differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two evaluations differ, with both values. `old` may have further fields."""
    now = flatten_settings(json.loads(json.dumps(new)))
    before = flatten_settings({key: old[key] for key in new if key in old})
    names = [name for name in before | now if before.get(name) != now.get(name)]
    return {name: (before.get(name), now.get(name)) for name in names}


def is_of_other_weights(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether two evaluations differ only in the weights of the encoder."""
    return list(find_differences(old, new)) == [WEIGHTS]


def check_identity(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise UserError if a folder contains another evaluation, or one of other weights with the same name."""
    if is_of_other_weights(old, new):
        raise UserError(
            f"{folder} contains an evaluation of other weights of {new['encoder']['name']}, such as an earlier state "
            "of the run: choose another --out, or replace it with --replace"
        )
    if differing := find_differences(old, new):
        changes = [f"{name} ({shorten(before)}, now {shorten(now)})" for name, (before, now) in differing.items()]
        raise UserError(f"{folder} contains an evaluation that differs in {', '.join(changes)}: choose another --out")
