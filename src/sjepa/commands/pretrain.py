"""`sjepa pretrain`: train an encoder, or continue a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sjepa.bounds import INDEX
from sjepa.config import Config
from sjepa.config_options import add_config_options, add_phases, read_config_options
from sjepa.errors import UserError
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import load_preset, preset_names
from sjepa.stopping import INTERRUPTED
from sjepa.subcommands import option, parse


@dataclass(frozen=True)
class Pretrain:
    """Pre-train an encoder on a folder of audio, or continue a run.

    Start from a preset and change any setting: `sjepa pretrain --preset tiny --data audio/ --out run/ --phase2.k 500`.
    To continue a run, `sjepa pretrain --out run/` is enough. To lengthen it, even after its end, give more steps:
    `sjepa pretrain --out run/ --phase2.steps 120000`. Under torchrun, training uses one GPU per process.
    """

    out: Path
    """Folder of the run: a new one, or one to continue."""
    data: str = ""
    """Audio to train on: a folder (wav, flac, ogg, opus or mp3 of any rate), an index, or shards (folder or URL).
    Several corpora: a,b mixes them by size, a=0.7,b=0.3 by weight. A run that continues remembers its data."""
    preset: str = ""
    """Settings to start from: tiny, compact, half-hour, base, paper, or a TOML file (docs/runs.md)."""
    branch_from: Path | None = None
    """Share the first phases of another run: the new run starts from the last checkpoint that both have in common."""
    replace_data: bool = False
    """Allow an existing run to continue with other audio (--data)."""
    stop_after_phase: Annotated[int, INDEX] = 0
    """Save and stop at the end of this phase; 0 trains to the end of the run."""


def starting_config(arguments: list[str]) -> Config:
    """Return the config that options override: of the preset, or of the run to continue or to branch from."""
    preset = option(arguments, "--preset")
    if preset:
        return load_preset(preset)
    for run in (option(arguments, "--out"), option(arguments, "--branch-from")):
        if run and RunFolder(run).exists:
            return RunFolder(run).config()
    return Config()


def run(arguments: list[str]) -> None:
    start = add_phases(starting_config(arguments), arguments)
    command = parse(add_config_options(Pretrain, start), "sjepa pretrain", arguments)
    folder = RunFolder(command.out)
    known = folder
    if command.branch_from and not folder.exists:
        known = RunFolder(command.branch_from)
        if not known.exists:
            raise UserError(f"--branch-from {command.branch_from}: this is not a run")
    if folder.checkpoint_steps and not folder.exists:
        raise UserError(
            f"{folder} has checkpoints but no {folder.config_file.name}, so it cannot be continued: restore that file, "
            "or choose another --out"
        )
    if not command.preset and not known.exists:
        presets = " | ".join(preset_names())
        raise UserError(f"there is no run in {command.out}; to start one, choose a preset: --preset {presets}")
    if not (command.data or known.data):
        raise UserError("no audio given to train on: --data FOLDER")
    try:
        config = read_config_options(command.config)
    except UserError:
        if command.config.init_from and not known.exists:
            from sjepa.train.initial_encoder import read_initial_encoder

            # If the encoder has another size, say so: advice about layers is then of no use.
            read_initial_encoder(command.config.init_from, command.config.encoder)
        raise
    last = command.stop_after_phase
    if last > len(config.phases):
        raise UserError(f"--stop-after-phase {last}: the run has {len(config.phases)} phases")
    from sjepa import distributed
    from sjepa.train.branch import sections_at_branch
    from sjepa.train.loop import pretrain

    data = command.data or (known.data if known is folder else sections_at_branch(known, config)[-1].data)
    if not command.data and folder.step < config.steps:
        require_earlier_audio(data)
    choices = {"branch_from": command.branch_from, "replace_data": command.replace_data, "last_phase": last or None}
    if not pretrain(config, data, command.out, **choices):
        if distributed.world_size() == 1:  # torchrun would treat this exit code as a failure
            raise SystemExit(INTERRUPTED)  # stopped and saved, but a script should not go on to its next command
        return
    if distributed.is_main():
        print(f"The encoder is in {folder.encoder}: sjepa.Encoder.from_pretrained loads it")
        left = [str(phase.number) for phase in config.schedule() if phase.end > folder.step]
        if left:
            remain = f"Phase {left[0]} remains" if len(left) == 1 else f"Phases {' and '.join(left)} remain"
            print(f"{remain}: sjepa pretrain --out {command.out} continues")
        else:
            print(f"Next: sjepa report {command.out}, or sjepa embed AUDIO --encoder {command.out} --out FOLDER")


def require_earlier_audio(data: str) -> None:
    """Raise UserError if the audio that a run was started with is not there, for example in another working folder."""
    from sjepa.data.opening import parse_weights
    from sjepa.data.storage import is_url

    for where, _ in parse_weights(data):
        if not is_url(where) and not Path(where).exists():
            raise UserError(
                f"the run was started with --data {data}, but {where} is not here: run this command in the same folder "
                "as the first one, or give --data"
            )
