"""Which directory a run may have: a new one, its own, or one that starts where another run ended a phase.

Several runs can then share their first phases.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from sjepa.config import Config, Difference, differences, load_toml, phase_name, to_toml
from sjepa.errors import UserError
from sjepa.files import is_used
from sjepa.phases import PhaseConfig
from sjepa.targets.kinds import KINDS
from sjepa.train import checkpoint
from sjepa.train.run import README

# Fields that matter only while targets come from a target encoder.
OF_TARGET_ENCODER = frozenset(
    {
        "ema.fast",
        "ema.slow",
        "layer.choice",
        "layer.on_change",
        "gmm.decay",
        "gmm.minimum_count",
        "gmm.reseed",
        "gmm.update",
    }
)
MAY_DIFFER = frozenset({"train.log_every"})
NAMED = 5  # differences of configs that a refusal names


def check_directory(folder: Path, config: Config) -> None:
    """Refuse a directory that is not for this run, before any audio is read."""
    if (folder / "config.toml").exists():
        past = load_toml(folder / "config.toml")
        changed = differences(past, config)
        if changed:
            shared = shared_phases(folder, past, config) > 0
            raise UserError(
                f"{folder} is a run with another config ({in_short(changed)}): "
                "leave out --preset and the options to continue it as it is, or choose another --out"
                + (f", with --branch-from {folder} to share its first phase" if shared else "")
            )
    elif is_used(folder):
        raise UserError(f"{folder} is not empty and is not a run: choose another --out")


def in_short(changed: list[Difference]) -> str:
    """The first few differences of two configs; another preset differs in dozens."""
    more = f"; and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    return "; ".join(map(str, changed[:NAMED])) + more


def unshared(past: Config, config: Config, phases: int) -> list[Difference]:
    """Differences of two configs that their first phases depend on."""
    shared = past.phases[:phases]
    later = {phase_name(number) for number in range(phases + 1, 1 + max(len(past.phases), len(config.phases)))}
    free = MAY_DIFFER if any(reads_encoder(phase) for phase in shared) else MAY_DIFFER | OF_TARGET_ENCODER
    return [d for d in differences(past, config) if d.name not in free and d.name.split(".")[0] not in later]


def reads_encoder(phase: PhaseConfig) -> bool:
    return phase.targets != "same" and KINDS[phase.targets].reads_encoder


def boundary(run: Path, config: Config, phases: int) -> Path:
    """The checkpoint at the end of so many phases."""
    return checkpoint.folder_of(run, config.schedule()[phases - 1].end)


def shared_phases(run: Path, past: Config, config: Config) -> int:
    """How many first phases a new run can take over from one that has finished them; its last phase is always new."""
    most = min(len(past.phases), len(config.phases)) - 1
    return max(
        (
            n
            for n in range(1, most + 1)
            if not unshared(past, config, n) and (boundary(run, past, n) / "state.json").is_file()
        ),
        default=0,
    )


def branch(source: Path, out: Path, config: Config) -> None:
    """Make `out` a run that has just ended the phases it shares with `source`, with the state and log of that time."""
    if not (source / "config.toml").is_file():
        raise UserError(f"--branch-from {source}: this is not a run")
    if is_used(out):
        raise UserError(f"{out} is not empty: choose another --out for the branch")
    past = load_toml(source / "config.toml")
    changed = unshared(past, config, 1)
    if changed:
        raise UserError(f"a branch of {source} shares its first phase, so these cannot differ: {in_short(changed)}")
    phases = shared_phases(source, past, config)
    if not phases:
        step = past.phases[0].steps
        raise UserError(f"{source} has not finished phase 1: there is no checkpoint of step {step:,} yet")
    begin = boundary(source, past, phases)
    logged = json.loads((begin / "state.json").read_text())["log_bytes"]
    partial = out.with_name(f".{out.name}.partial")  # a folder that is whole or not there
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shutil.copytree(begin, partial / "checkpoints" / begin.name)
    for number in range(1, phases + 1):
        shutil.copytree(source / f"encoder-phase{number}", partial / f"encoder-phase{number}")
        shutil.copy2(source / f"gmm-phase{number}.safetensors", partial)
    shutil.copytree(source / f"encoder-phase{phases}", partial / "encoder")
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
