"""Load an encoder, also from the checkpoint of a run at a step."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sjepa.errors import UserError
from sjepa.runs.checkpoint import DamagedError, load, load_latest
from sjepa.runs.folder import RunFolder

if TYPE_CHECKING:
    from sjepa.runs.checkpoint import Parts
    from sjepa.runs.encoder import Encoder


def load_step(path: Path, step: int) -> tuple["Parts", dict[str, Any]]:
    """Load parts and state of the checkpoint of a step."""
    run = RunFolder(path)
    if not run.exists:
        raise UserError(f"--step {step}: {path} is not a run of `sjepa pretrain`, and only runs have checkpoints")
    if step not in run.checkpoint_steps:
        there = ", ".join(map(str, sorted(run.checkpoint_steps))) or "none"
        raise UserError(
            f"--step {step}: {path} has no checkpoint of that step, only of {there}; set train.keep_every to keep more"
        )
    try:
        return load(run.checkpoint(step))
    except DamagedError as error:
        raise UserError(f"--step {step}: {run.checkpoint(step)} is damaged ({error})") from error


def load_encoder(source: Path, step: int | None = None, ema: bool = False) -> "Encoder":
    """Load an encoder by path or name. With `step` or `ema`, load it from a checkpoint of a run."""
    from sjepa.runs.encoder import Encoder

    if step is None and not ema:
        return Encoder.from_pretrained(source)
    return load_encoder_at(source, step, ema)


def load_encoder_at(path: Path, step: int | None, ema: bool = False) -> "Encoder":
    """Load the encoder of a run at a step, or at its newest checkpoint, with mixture and head, for inference.

    With `ema`, load the target encoder: the moving average of the encoder, whose features the mixture reads.
    """
    from sjepa.model.formats import load_strictly, select_part
    from sjepa.runs.encoder import Encoder
    from sjepa.runs.heads import restore_clusters

    run = RunFolder(path)
    if step is None:
        run.require()
    found = load_latest(run) if step is None else load_step(path, step)
    if found is None:
        raise UserError(f"{path} has no checkpoint yet: `sjepa pretrain --out {path}` continues it")
    parts, state = found
    weights = select_part(parts["targets"], "features.encoder.") if ema else select_part(parts["model"], "encoder.")
    if not weights:
        raise UserError(
            f"{path} has no target encoder at step {state['step']}: its targets do not read an encoder there"
        )
    encoder = Encoder(run.config().encoder)
    load_strictly(encoder, weights, str(run.checkpoint(state["step"])))
    encoder.held_clusters = [restore_clusters(run, parts, state)]
    return encoder.eval()
