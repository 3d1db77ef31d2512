"""A run that starts where another ended its first phase: several second phases then share one first."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from sjepa.config import Config, differences, load_toml, to_toml
from sjepa.errors import UserError
from sjepa.files import is_used
from sjepa.train import checkpoint
from sjepa.train.run import MAY_DIFFER, README, in_short


def branch(source: Path, out: Path, config: Config) -> None:
    """Make `out` a run that has just ended phase 1, with the state, log and results that `source` had then."""
    if not (source / "config.toml").is_file():
        raise UserError(f"--branch-from {source}: this is not a run")
    if is_used(out):
        raise UserError(f"{out} is not empty: choose another --out for the branch")
    past = load_toml(source / "config.toml")
    changed = [line for line in differences(past, config) if not line.startswith(MAY_DIFFER)]
    if past.phase1.targets == "best-rq" and past.gmm.k != config.gmm.k:
        changed.append(f"gmm.k was {past.gmm.k}, now {config.gmm.k}")  # its codebook has this size
    if changed:
        raise UserError(f"a branch of {source} shares its first phase, so these cannot differ: {in_short(changed)}")
    boundary = checkpoint.folder_of(source, past.phase1.steps)
    if not (boundary / "state.json").is_file():
        raise UserError(f"{source} has not finished phase 1: there is no checkpoint of step {past.phase1.steps:,} yet")
    logged = json.loads((boundary / "state.json").read_text())["log_bytes"]
    partial = out.with_name(f".{out.name}.partial")  # a folder that is whole or not there
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shutil.copytree(boundary, partial / "checkpoints" / boundary.name)
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
