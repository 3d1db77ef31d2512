"""Change a run that has started: more steps, more phases, other audio. The old run is kept.

The order of the writes makes a kill harmless. First, the run is copied to `before-step-N`. Then one write of run.json
changes the run (`runs/history.py`). Repeating the command completes what is missing.
"""

import os
import shutil
from pathlib import Path

from sjepa.config import Config, Difference, differences
from sjepa.errors import UserError
from sjepa.files import atomic_folder
from sjepa.phase_names import phase_number
from sjepa.phases import Phase
from sjepa.runs import checkpoint
from sjepa.runs.folder import RunFolder

SWITCHES = {
    "visible loss": Phase.uses_visible_loss,
    "augmentation": Phase.augments,
    "training of the front end": Phase.trains_frontend,
}


def find_begun_phase(folder: RunFolder) -> int:
    """Return the phase of the newest checkpoint, or 0 without checkpoints."""
    for step in folder.checkpoint_steps:
        try:
            return int(checkpoint.read_state(folder.checkpoint(step)).get("phase", 0))
        except checkpoint.DamagedError:
            continue
    return 0


def find_obstacles(past: Config, config: Config, begun: int) -> list[Difference]:
    """Return the differences that a run cannot adopt. It accepts new phases, and more steps in phases not ended."""
    return [d for d in differences(past, config) if not is_extension(d, len(past.phases), begun)]


def is_extension(difference: Difference, phases: int, begun: int) -> bool:
    """Return whether a difference adds a phase, or steps to a phase that has not ended."""
    section, _, field = difference.name.partition(".")
    number = phase_number(section)
    if number is None:
        return False
    if difference.old is None and number > phases:
        return True
    longer = difference.old is not None and difference.new is not None and difference.new > difference.old
    return field == "steps" and number >= begun and longer


def explain_obstacles(obstacles: list[Difference]) -> list[str]:
    """Explain which numbers of steps a run accepts, if only steps differ. Otherwise return nothing."""
    if not all(d.name.endswith(".steps") for d in obstacles):
        return []
    return ["A run accepts new phases, and more steps in its last phase or in a phase that has not ended, never fewer."]


def describe_extension(past: Config, config: Config, step: int) -> list[str]:
    """Describe the effect of more steps and phases from a step on. Schedules are recomputed for the new lengths."""
    lines = []
    old, new = past.schedule(), config.schedule()
    for before, after in zip(old, new, strict=False):
        if before.config.steps == after.config.steps:
            continue
        line = f"Phase {after.number}: {before.config.steps:,} -> {after.config.steps:,} steps"
        if after.start < step < after.end:
            last, rate = before.lr(min(step, before.end) - 1), after.lr(step)
            change = "stays" if rate == last else "rises from" if rate > last else "falls from"
            rates = f"{rate:.3g}" if rate == last else f"{last:.3g} to {rate:.3g}"
            line += f"; schedules recomputed: at step {step:,} the learning rate {change} {rates}"
            line += "".join(
                f", {name} is {'on' if is_on(after, step) else 'off'} again"
                for name, is_on in SWITCHES.items()
                if is_on(before, min(step, before.end) - 1) != is_on(after, step)
            )
        lines.append(line)
    lines += [f"Phase {phase.number} is added: {phase.config.steps:,} steps" for phase in new[len(old) :]]
    return lines


def keep_earlier(folder: RunFolder, phases: int, step: int) -> Path | None:
    """Copy the run at the checkpoint of a step to a folder inside it. Return the folder, or None without a checkpoint.

    Checkpoints and weights are hard links if the disk supports them. They take no space until the run replaces its own.
    """
    kept = folder.earlier(step)
    if RunFolder(kept).exists or step not in folder.checkpoint_steps:
        return kept if RunFolder(kept).exists else None
    logged = int(checkpoint.read_state(folder.checkpoint(step))["log_bytes"])
    with atomic_folder(kept, "replace") as partial:
        new = RunFolder(partial)
        link_tree(folder.checkpoint(step), new.checkpoints / folder.checkpoint(step).name)
        numbers = range(1, phases + 1)
        for weights in (folder.encoder, *map(folder.phase_encoder, numbers)):
            if weights.is_dir():
                link_tree(weights, partial / weights.name)
        for file in map(folder.codebook, numbers):
            if file.is_file():
                link(file, partial / file.name)
        for file in (folder.refused, folder.readme, folder.facts_file, folder.config_file):
            if file.is_file():
                shutil.copy2(file, partial / file.name)
        with folder.log.open("rb") as log:
            new.log.write_bytes(log.read(logged))
    return kept


def keep_ended_phase(folder: RunFolder, past: Config, config: Config, step: int) -> None:
    """Keep the encoder of a phase that was the last and has ended, before a new phase replaces it."""
    last = len(past.phases)
    if len(config.phases) > last and config.schedule()[last - 1].end == step and folder.encoder.is_dir():
        with atomic_folder(folder.phase_encoder(last), "replace") as partial:
            shutil.copytree(folder.encoder, partial, dirs_exist_ok=True)


def link_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=link)


def link(source: str | Path, target: str | Path) -> None:
    """Make a hard link, or a copy if the disk has no links. Files of a run are replaced, never changed."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def refuse_idle_change(folder: RunFolder, config: Config, step: int) -> None:
    """Raise UserError if a run gets other audio but has no steps left."""
    if step >= config.steps:
        raise UserError(
            f"{folder} is complete: give it more steps for the new audio, as in --phase{len(config.phases)}.steps "
            f"{2 * config.phases[-1].steps}"
        )
