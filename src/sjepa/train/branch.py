"""Which directory a run may have: a new one, its own, or one that starts where another run ended its first phase.

Several second phases then share one first.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from sjepa.config import Config, differences, load_toml, to_toml
from sjepa.errors import UserError
from sjepa.files import is_used
from sjepa.runs import checkpoint
from sjepa.train.run import README

# What the first phase does not depend on.
MAY_DIFFER = (
    "phase2.", "ema.", "layer.choice ", "layer.on_change ", "gmm.k ", "gmm.decay ", "gmm.minimum_count ", "gmm.reseed ",
    "gmm.update ", "train.log_every ",
)  # fmt: skip
NAMED = 5  # differences of configs that a refusal names


def check_directory(folder: Path, config: Config) -> None:
    """Refuse a directory that is not for this run, before any audio is read."""
    if (folder / "config.toml").exists():
        past = load_toml(folder / "config.toml")
        changed = differences(past, config)
        if changed:
            shared = not unshared(past, config) and (boundary(folder, past) / "state.json").is_file()
            raise UserError(
                f"{folder} is a run with another config ({in_short(changed)}): "
                "leave out --preset and the options to continue it as it is, or choose another --out"
                + (f", with --branch-from {folder} to share its first phase" if shared else "")
            )
    elif is_used(folder):
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


def boundary(run: Path, config: Config) -> Path:
    """The checkpoint at the end of phase 1."""
    return checkpoint.folder_of(run, config.phase1.steps)


def branch(source: Path, out: Path, config: Config) -> None:
    """Make `out` a run that has just ended phase 1, with the state, log and results that `source` had then."""
    if not (source / "config.toml").is_file():
        raise UserError(f"--branch-from {source}: this is not a run")
    if is_used(out):
        raise UserError(f"{out} is not empty: choose another --out for the branch")
    past = load_toml(source / "config.toml")
    changed = unshared(past, config)
    if changed:
        raise UserError(f"a branch of {source} shares its first phase, so these cannot differ: {in_short(changed)}")
    begin = boundary(source, past)
    if not (begin / "state.json").is_file():
        raise UserError(f"{source} has not finished phase 1: there is no checkpoint of step {past.phase1.steps:,} yet")
    logged = json.loads((begin / "state.json").read_text())["log_bytes"]
    partial = out.with_name(f".{out.name}.partial")  # a folder that is whole or not there
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shutil.copytree(begin, partial / "checkpoints" / begin.name)
    for name in ("encoder-phase1", "encoder"):
        shutil.copytree(source / "encoder-phase1", partial / name)
    shutil.copy2(source / "gmm-phase1.safetensors", partial)
    (partial / "README.txt").write_text(README)
    with (source / "metrics.jsonl").open("rb") as log:
        (partial / "metrics.jsonl").write_bytes(log.read(logged))
    facts = json.loads((source / "run.json").read_text())
    facts |= {
        "branched_from": str(source),
        "command": " ".join(sys.argv),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    (partial / "run.json").write_text(json.dumps(facts, indent=1) + "\n")
    (partial / "config.toml").write_text(to_toml(config))
    if out.exists():
        out.rmdir()
    os.replace(partial, out)
