"""`sjepa config`: the settings that a run would use."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from sjepa.config import Config, load_preset, to_toml
from sjepa.subcommands import option


@dataclass(frozen=True)
class ShowConfig:
    """Print the settings that a run would use, as TOML."""

    preset: str = "paper"
    """Where settings start: tiny, half-hour, paper, or a TOML file."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def run(arguments: list[str]) -> None:
    config = load_preset(option(arguments, "--preset") or "paper")
    command = tyro.cli(ShowConfig, prog="sjepa config", args=arguments, default=ShowConfig(config=config))
    print(to_toml(command.config), end="")
