"""Check the folder of a run, and branch a new run from the end of a phase of another.

Branches let several runs share their first phases.
"""

import shutil
from pathlib import Path

from sjepa.config import Config, Difference, differences
from sjepa.errors import UserError
from sjepa.fields import WHOLE, require
from sjepa.files import atomic_folder, is_used
from sjepa.locks import lock_new_folder
from sjepa.phase_names import phase_name
from sjepa.phases import PhaseConfig
from sjepa.runs import checkpoint
from sjepa.runs.audio import FIELDS, AudioSection, audio_sections, to_facts
from sjepa.runs.folder import RunFolder, describe_process
from sjepa.targets.kinds import KINDS
from sjepa.train.extend import explain_obstacles, find_begun_phase, find_obstacles

# Fields that matter only if targets come from a target encoder.
OF_TARGET_ENCODER = frozenset(
    {
        "ema.fast",
        "ema.slow",
        "ema.schedule",
        "layer.choice",
        "layer.hysteresis",
        "layer.on_change",
        "gmm.decay",
        "gmm.minimum_count",
        "gmm.reseed",
        "gmm.update",
    }
)
MAY_DIFFER = frozenset({"train.log_every"})
NAMED = 5  # differences that an error message lists


def check_directory(folder: RunFolder, config: Config) -> None:
    """Raise UserError if the folder does not belong to this run. No audio is read."""
    if folder.exists:
        past = folder.config()
        obstacles = find_obstacles(past, config, find_begun_phase(folder))
        if obstacles:
            shared = count_shared_phases(folder, past, config)
            branch = f", with --branch-from {folder} to share {name_first_phases(shared)}" if shared else ""
            lines = [
                f"{folder} is a run with other settings:",
                *(f"  {difference}" for difference in list_differences(obstacles)),
                *explain_obstacles(obstacles),
                "To continue the run as it is, leave out --preset and these options.",
                f"To train with these settings, choose another --out{branch}.",
            ]
            raise UserError("\n".join(lines))
    elif not folder.is_unstarted:
        raise UserError(f"{folder} is not empty and is not a run: choose another --out")


def name_first_phases(count: int) -> str:
    return "its first phase" if count == 1 else f"its first {count} phases"


def list_differences(changed: list[Difference]) -> list[str]:
    """List the first few differences of two configs. Another preset differs in dozens."""
    more = [f"and {len(changed) - NAMED} more"] if len(changed) > NAMED else []
    return [*map(str, changed[:NAMED]), *more]


def find_unshared(past: Config, config: Config, phases: int) -> list[Difference]:
    """Return the differences of two configs that affect their first phases."""
    shared = past.phases[:phases]
    later = {phase_name(number) for number in range(phases + 1, 1 + max(len(past.phases), len(config.phases)))}
    free = MAY_DIFFER
    if not any(reads_encoder(phase) for phase in shared):
        free |= OF_TARGET_ENCODER
    elif past.gmm.reseed:  # dead components restart with lines of the log
        free -= {"train.log_every"}
    return [d for d in differences(past, config) if d.name not in free and d.name.split(".")[0] not in later]


def reads_encoder(phase: PhaseConfig) -> bool:
    return phase.targets != "same" and KINDS[phase.targets].reads_encoder


def boundary_checkpoint(folder: RunFolder, config: Config, phases: int) -> Path:
    """Return the checkpoint at the end of the first `phases` phases."""
    return folder.checkpoint(config.schedule()[phases - 1].end)


def shareable_phases(past: Config, config: Config) -> list[int]:
    """Return each number of first phases that two configs have in common. The last phase of a new run is its own."""
    most = min(len(past.phases), len(config.phases) - 1)
    return [number for number in range(1, most + 1) if not find_unshared(past, config, number)]


def count_shared_phases(folder: RunFolder, past: Config, config: Config) -> int:
    """Return how many first phases a new run can take from one that has finished them."""
    shareable = shareable_phases(past, config)
    ends = {number: checkpoint.state_file(boundary_checkpoint(folder, past, number)) for number in shareable}
    return max((number for number, end in ends.items() if end.is_file()), default=0)


def sections_at_branch(source: RunFolder, config: Config) -> list[AudioSection]:
    """Return the audio of a run up to the step at which a branch with this config starts."""
    past = source.config()
    phases = count_shared_phases(source, past, config)
    return audio_sections(source.facts, before=past.schedule()[phases - 1].end if phases else None)


def branch(source: Path, out: Path, config: Config) -> int:
    """Create the run `out` at the end of the phases that it shares with `source`. Return the number of these phases.

    The new run has the state and the log of that step.
    """
    first = RunFolder(source)
    if not first.exists:
        raise UserError(f"--branch-from {source}: this is not a run; `sjepa pretrain` makes runs")
    if is_used(out):
        raise UserError(f"{out} is not empty: choose another --out for the branch")
    past = first.config()
    changed = find_unshared(past, config, 1)
    if changed:
        listed = "; ".join(list_differences(changed))
        raise UserError(f"a branch of {source} shares its first phase, so these cannot differ: {listed}")
    phases = count_shared_phases(first, past, config)
    if not phases:
        step = past.phases[0].steps
        raise UserError(f"{source} has not finished phase 1: there is no checkpoint of step {step:,} yet")
    begin = boundary_checkpoint(first, past, phases)
    try:
        logged = require(checkpoint.read_state(begin), "log_bytes", WHOLE, "state.json")
    except (checkpoint.DamagedError, UserError) as error:
        raise UserError(f"{begin} is damaged ({error}): {source} cannot be branched from") from error
    with lock_new_folder(out), atomic_folder(out) as partial:
        new = RunFolder(partial)
        shutil.copytree(begin, new.checkpoints / begin.name)
        for number in range(1, phases + 1):
            ended = first.phase_encoder(number) if number < len(past.phases) else first.encoder
            shutil.copytree(ended, new.phase_encoder(number))
            shutil.copy2(first.codebook(number), new.codebook(number))
        shutil.copytree(new.phase_encoder(phases), new.encoder)
        with first.log.open("rb") as log:
            new.log.write_bytes(log.read(logged))
        facts = {name: value for name, value in first.facts.items() if name not in FIELDS}
        facts |= to_facts(sections_at_branch(first, config))
        new.write_start(config, facts | {"branched_from": str(source)} | describe_process())
    return phases
