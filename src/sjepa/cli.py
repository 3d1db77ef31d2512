"""The front door: `sjepa VERB`, one verb a job."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from sjepa.config import Config, load_preset, load_toml, preset_names, to_toml
from sjepa.errors import UserError


@dataclass(frozen=True)
class Pretrain:
    """Pre-train an encoder on a folder of audio, or continue a run.

    Start from a preset and change any field: `sjepa pretrain --preset tiny --data audio/ --out run/ --gmm.k 500`.
    Run the same command again to continue; `sjepa pretrain --out run/` is enough. Under torchrun it uses every GPU.
    """

    out: Path
    """Directory of the run; a new one, or one to continue."""
    data: str = ""
    """Folder of audio: wav, flac, ogg, opus or mp3 of any rate. A run that continues knows its own."""
    preset: str = ""
    """Where settings start: tiny, half-hour, paper, or a TOML file."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


@dataclass(frozen=True)
class ShowConfig:
    """Print the settings that a run would use, as TOML."""

    preset: str = "paper"
    """Where settings start: tiny, half-hour, paper, or a TOML file."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


@dataclass(frozen=True)
class Demo:
    """The whole way in a few minutes: synthetic speech, both phases of the tiny preset, probes, a page."""

    out: Path = Path("runs/demo")
    """Directory of the demo: corpus, run and page."""


def option(arguments: list[str], name: str) -> str:
    """A plain option's value, looked up before the typed parse because it decides the defaults."""
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(name + "="):
            return argument.split("=", 1)[1]
    return ""


def starting_config(arguments: list[str]) -> Config:
    """The config that command-line overrides apply to: the preset's, or that of the run being continued."""
    preset, out = option(arguments, "--preset"), option(arguments, "--out")
    if preset:
        return load_preset(preset)
    if out and (Path(out) / "config.toml").exists():
        return load_toml(Path(out) / "config.toml")
    return Config()


def run_pretrain(arguments: list[str]) -> None:
    config = starting_config(arguments)
    command = tyro.cli(Pretrain, prog="sjepa pretrain", args=arguments, default=Pretrain(tyro.MISSING, config=config))
    from sjepa.train.loop import pretrain

    known = command.out / "run.json"
    if not command.preset and not known.exists():
        raise UserError(f"choose a preset for a new run: --preset {' | '.join(preset_names())}")
    data = command.data or (json.loads(known.read_text())["data"] if known.exists() else "")
    if not data:
        raise UserError("say which audio to train on: --data FOLDER")
    if pretrain(command.config, data, command.out):
        print(f"The encoder is in {command.out / 'encoder'}: sjepa.Encoder.from_pretrained loads it")


def run_config(arguments: list[str]) -> None:
    config = load_preset(option(arguments, "--preset") or "paper")
    command = tyro.cli(ShowConfig, prog="sjepa config", args=arguments, default=ShowConfig(config=config))
    print(to_toml(command.config), end="")


def run_demo(arguments: list[str]) -> None:
    command = tyro.cli(Demo, prog="sjepa demo", args=arguments)
    from sjepa.demo import demo

    demo(command.out)


VERBS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "pretrain": (run_pretrain, "train an encoder on a folder of audio, or continue a run"),
    "config": (run_config, "print the settings that a run would use"),
    "demo": (run_demo, "the whole way on a small synthetic corpus, in a few minutes"),
}


def usage() -> str:
    verbs = "\n".join(f"  {name:<10} {what}" for name, (_, what) in VERBS.items())
    return f"usage: sjepa VERB ...\n\n{verbs}\n\n`sjepa VERB --help` explains every option."


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return
    try:
        if arguments[0] == "--version":
            from sjepa import __version__

            print(__version__)
            return
        if arguments[0] not in VERBS:
            from sjepa.config import suggestion

            raise UserError(f"there is no verb {arguments[0]!r}{suggestion(arguments[0], VERBS)}\n{usage()}")
        VERBS[arguments[0]][0](arguments[1:])
    except UserError as error:
        print(f"sjepa: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("sjepa: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        from sjepa import distributed

        distributed.shutdown()
