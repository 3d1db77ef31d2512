"""A run at one of its checkpoints: the encoder as it was at a step."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError
from sjepa.runs.checkpoint import DamagedError, load
from sjepa.runs.folder import RunFolder

if TYPE_CHECKING:
    from sjepa.model.encoder import Encoder
    from sjepa.runs.checkpoint import Parts


def load_step(path: Path, step: int) -> tuple["Parts", dict[str, Any]]:
    """Parts and state of the checkpoint of a step."""
    run = RunFolder(path)
    if not run.exists:
        raise UserError(f"--step {step}: {path} is not a run of `sjepa pretrain`, and only runs have checkpoints")
    if step not in run.checkpoint_steps:
        there = ", ".join(map(str, sorted(run.checkpoint_steps))) or "none"
        raise UserError(
            f"--step {step}: {path} has no checkpoint of that step, only of {there}; train.keep_every keeps more"
        )
    try:
        return load(run.checkpoint(step))
    except DamagedError as error:
        raise UserError(f"--step {step}: {run.checkpoint(step)} is damaged ({error})") from error


def encoder_at(path: Path, step: int) -> "Encoder":
    """The encoder of a run at the checkpoint of a step, for inference."""
    from sjepa.model.encoder import Encoder
    from sjepa.model.formats import load_strictly

    parts, _ = load_step(path, step)
    weights = {
        name.removeprefix("encoder."): tensor for name, tensor in parts["model"].items() if name.startswith("encoder.")
    }
    encoder = Encoder(RunFolder(path).config().encoder)
    load_strictly(encoder, weights, str(RunFolder(path).checkpoint(step)))
    return encoder.eval()
