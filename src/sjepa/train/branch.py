"""Which directory a run may have: a new one, its own, or one that starts where another run ended its first phase.

Several second phases then share one first.
"""

import shutil
from pathlib import Path

from sjepa.config import Config, differences
from sjepa.errors import UserError
from sjepa.files import atomic_folder, is_used
from sjepa.runs import checkpoint
from sjepa.runs.folder import RunFolder, describe_process

# What the first phase does not depend on.
MAY_DIFFER = (
    "phase2.", "ema.", "layer.choice ", "layer.on_change ", "gmm.k ", "gmm.decay ", "gmm.minimum_count ", "gmm.reseed ",
    "gmm.update ", "train.log_every ",
)  # fmt: skip
NAMED = 5  # differences of configs that a refusal names


def check_directory(folder: RunFolder, config: Config) -> None:
    """Refuse a directory that is not for this run, before any audio is read."""
    if folder.exists:
        past = folder.config()
        changed = differences(past, config)
        if changed:
            shared = not unshared(past, config) and checkpoint.state_file(boundary(folder, past)).is_file()
            raise UserError(
                f"{folder} is a run with another config ({in_short(changed)}): "
                "leave out --preset and the options to continue it as it is, or choose another --out"
                + (f", with --branch-from {folder} to share its first phase" if shared else "")
            )
    elif is_used(folder.path):
        raise UserError(f"{folder} is not empty and is not a run: choose another --out")


def in_short(changed: list[str]) -> str:
    """The first few differences of two configs; another preset differs in dozens."""
    more = f"; and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    return "; ".join(changed[:NAMED]) + more


def unshared(past: Config, config: Config) -> list[str]:
    """Differences of two configs that their first phases depend on."""
    changed = [line for line in differences(past, config) if not line.startswith(MAY_DIFFER)]
    if past.phase1.targets == "best-rq" and past.gmm.k != config.gmm.k:
        changed.append(f"gmm.k was {past.gmm.k}, now {config.gmm.k}")  # its codebook has this size
    return changed


def boundary(run: RunFolder, config: Config) -> Path:
    """The checkpoint at the end of phase 1."""
    return run.checkpoint(config.phase1.steps)


def branch(source: Path, out: Path, config: Config) -> None:
    """Make `out` a run that has just ended phase 1, with the state, log and results that `source` had then."""
    first = RunFolder(source)
    if not first.exists:
        raise UserError(f"--branch-from {source}: this is not a run")
    if is_used(out):
        raise UserError(f"{out} is not empty: choose another --out for the branch")
    past = first.config()
    changed = unshared(past, config)
    if changed:
        raise UserError(f"a branch of {source} shares its first phase, so these cannot differ: {in_short(changed)}")
    begin = boundary(first, past)
    if not checkpoint.state_file(begin).is_file():
        raise UserError(f"{source} has not finished phase 1: there is no checkpoint of step {past.phase1.steps:,} yet")
    logged = checkpoint.read_state(begin)["log_bytes"]
    with atomic_folder(out) as partial:
        new = RunFolder(partial)
        shutil.copytree(begin, new.checkpoints / begin.name)
        for folder in (new.phase_encoder(1), new.encoder):
            shutil.copytree(first.phase_encoder(1), folder)
        shutil.copy2(first.codebook(1), new.codebook(1))
        with first.log.open("rb") as log:
            new.log.write_bytes(log.read(logged))
        new.write_start(config, first.facts | {"branched_from": str(source)} | describe_process())
