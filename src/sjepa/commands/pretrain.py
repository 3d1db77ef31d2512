"""`sjepa pretrain`: train an encoder, or continue."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.config import Config, load_preset, load_toml, preset_names
from sjepa.errors import UserError
from sjepa.subcommands import option


@dataclass(frozen=True)
class Pretrain:
    """Pre-train an encoder on a folder of audio, or continue a run.

    Start from a preset and change any field: `sjepa pretrain --preset tiny --data audio/ --out run/ --gmm.k 500`.
    Run the same command again to continue; `sjepa pretrain --out run/` is enough. Under torchrun it uses every GPU.
    """

    out: Path
    """Directory of the run; a new one, or one to continue."""
    data: str = ""
    """Folder of audio (wav, flac, ogg, opus or mp3 of any rate), an index or shards (folder or URL), or several with
    weights: a=0.7,b=0.3. A run that continues knows its own."""
    preset: str = ""
    """Where settings start: tiny, half-hour, paper, or a TOML file."""
    branch_from: Path | None = None
    """A run whose first phase the new run shares: it starts from that checkpoint, and its phase 2 may differ."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def starting_config(arguments: list[str]) -> Config:
    """The config that overrides apply to: the preset's, or that of the run being continued or branched from."""
    preset = option(arguments, "--preset")
    if preset:
        return load_preset(preset)
    for run in (option(arguments, "--out"), option(arguments, "--branch-from")):
        if run and (Path(run) / "config.toml").exists():
            return load_toml(Path(run) / "config.toml")
    return Config()


def run(arguments: list[str]) -> None:
    default = Pretrain(tyro.MISSING, config=starting_config(arguments))
    command = tyro.cli(Pretrain, prog="sjepa pretrain", args=arguments, default=default)
    known = command.out / "run.json"
    if command.branch_from and not known.exists():
        known = command.branch_from / "run.json"
        if not known.exists():
            raise UserError(f"--branch-from {command.branch_from}: this is not a run")
    if not command.preset and not known.exists():
        presets = " | ".join(preset_names())
        raise UserError(f"there is no run in {command.out}; to begin one, choose a preset: --preset {presets}")
    data = command.data
    if not data and known.exists():
        from sjepa.train.run import data_of

        data = data_of(known.parent)
    if not data:
        raise UserError("say which audio to train on: --data FOLDER")
    from sjepa import distributed
    from sjepa.train.loop import pretrain

    if not pretrain(command.config, data, command.out, branch_from=command.branch_from):
        if distributed.world_size() == 1:  # torchrun would take it for a failure
            raise SystemExit(130)  # stopped in good order, but what follows in a script should not start
        return
    if distributed.is_main():
        print(f"The encoder is in {command.out / 'encoder'}: sjepa.Encoder.from_pretrained loads it")
