"""Command-line options for the settings of a config: --seed, --phase1.steps and so on."""

import dataclasses
from dataclasses import field
from typing import Annotated, Any

from sjepa.config import Config, Settings
from sjepa.phase_names import phase_name, phase_number
from sjepa.phases import PhaseConfig
from sjepa.settings_file import extend_phases


def add_phases(config: Config, arguments: list[str]) -> Config:
    """Add the phases that options name: `--phase3.steps 5` adds phase 3, with the other settings of phase 2."""
    sections = {argument.removeprefix("--").partition(".")[0] for argument in arguments if argument.startswith("--")}
    numbers = [number for section in sections if (number := phase_number(section)) is not None]
    return dataclasses.replace(config, phases=extend_phases(config.phases, numbers, "--"))


def add_config_options(command: type[Any], config: Config) -> type[Any]:
    """Return the dataclass of a command with every setting of a config as an additional option."""
    import tyro

    phases = [(phase_name(n), PhaseConfig, field(default=phase)) for n, phase in enumerate(config.phases, 1)]
    settings = dataclasses.make_dataclass("Settings", phases, bases=(Settings,), frozen=True)
    default = settings(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Settings)})
    option = ("config", Annotated[settings, tyro.conf.arg(name="")], field(default=default))
    extended = dataclasses.make_dataclass(command.__name__, [option], bases=(command,), frozen=True)
    extended.__doc__ = command.__doc__
    return extended


def read_config_options(parsed: Any) -> Config:
    """Return the config from the parsed options of `add_config_options`."""
    values = {f.name: getattr(parsed, f.name) for f in dataclasses.fields(parsed)}
    shared = {f.name: values.pop(f.name) for f in dataclasses.fields(Settings)}
    return Config(**shared, phases=tuple(values.values()))
