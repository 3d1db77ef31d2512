"""`sjepa config`: print the settings that a run would use."""

from dataclasses import dataclass

from sjepa.config_options import add_config_options, add_phases, read_config_options
from sjepa.settings_file import load_preset, to_toml
from sjepa.subcommands import option, parse


@dataclass(frozen=True)
class ShowConfig:
    """Print the settings that a run would use, as TOML."""

    preset: str = "paper"
    """Settings to start from: tiny, compact, half-hour, base, paper, or a TOML file."""


def run(arguments: list[str]) -> None:
    config = add_phases(load_preset(option(arguments, "--preset") or "paper"), arguments)
    command = parse(add_config_options(ShowConfig, config), "sjepa config", arguments)
    print(to_toml(read_config_options(command.config)), end="")
