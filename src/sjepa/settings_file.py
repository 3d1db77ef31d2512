"""Read and write a config as TOML: presets, and files that state only what differs from what they extend."""

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w

from sjepa.config import Config, Settings, tables
from sjepa.errors import UserError, suggestion
from sjepa.fields import flatten_tables
from sjepa.files import escape_text, read_text
from sjepa.phase_names import phase_name, phase_number
from sjepa.phases import PhaseConfig

EXTENDS = "extends"  # the key that names the preset or file to start from
UNSET = "none"  # stands for None, because TOML has no null


def preset_names() -> list[str]:
    return sorted(
        p.name.removesuffix(".toml") for p in resources.files("sjepa.presets").iterdir() if p.name.endswith(".toml")
    )


def load_preset(name: str) -> Config:
    """Load a preset by name, or a settings file by path.

    >>> from sjepa import load_preset
    >>> load_preset("paper").phases[0].steps
    400000
    """
    return load_settings(name, Path(), ())


def load_settings(name: str, folder: Path, chain: tuple[str, ...]) -> Config:
    """Load a preset by name, or a settings file by its path in `folder`. `chain` lists the files that extend it."""
    if name.endswith(".toml"):
        path = folder / name
        if not path.is_file():
            wanted = f", which {chain[-1]} extends" if chain else ""
            raise UserError(f"there is no config file {path}{wanted}")
        return from_toml(read_text(path), str(path), path.parent, chain)
    if name not in preset_names():
        where = f"{chain[-1]}: extends = {name!r}: " if chain else ""
        raise UserError(
            f"{where}there is no preset {name!r}{suggestion(name, preset_names())}; presets are "
            f"{', '.join(preset_names())}{', and a path to a file ends in .toml' if chain else ''}"
        )
    text = resources.files("sjepa.presets").joinpath(f"{name}.toml").read_text("utf-8")
    return from_toml(text, f"preset {name}", Path(), chain)


def from_toml(text: str, source: str, folder: Path = Path(), chain: tuple[str, ...] = ()) -> Config:
    """Read a config from TOML text. Missing values come from the preset or file that it extends, or from the paper."""
    try:
        given = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not valid TOML: {error}") from error
    base = given.pop(EXTENDS, None)
    if base is None:
        return change_config(Config(), given, source)
    if not isinstance(base, str):
        raise UserError(f"{source}: {EXTENDS} = {base!r} should be the name of a preset or the path of a TOML file")
    if any(Path(other).resolve() == Path(source).resolve() for other in chain):
        raise UserError(f"{source} extends itself: {' -> '.join([*chain, source])}")
    return change_config(load_settings(base, folder, (*chain, source)), given, source)


def from_complete_toml(text: str, source: str) -> Config:
    """Read a config that `to_toml` wrote. It has all phases, so it may have fewer than the default."""
    config = from_toml(text, source)
    phases = [key for key in tomllib.loads(text) if phase_number(key) is not None]
    with naming(source):
        return dataclasses.replace(config, phases=config.phases[: len(phases)])


def extend_phases(phases: Sequence[PhaseConfig], numbers: Iterable[int], where: str) -> tuple[PhaseConfig, ...]:
    """Add the phases with these numbers. A new phase starts from the settings of the previous one."""
    extended = list(phases)
    for number in sorted(numbers):
        if number > len(extended) + 1:
            raise UserError(f"{where}{phase_name(number)}: there is no {phase_name(number - 1)}")
        extended += extended[-1:] * (number - len(extended))
    return tuple(extended)


def change_config(config: Config, given: dict[str, Any], source: str) -> Config:
    """Return a config with the values of TOML tables."""
    numbered = {number: key for key in given if (number := phase_number(key)) is not None}
    phases = list(config.phases)
    for number, key in sorted(numbered.items()):
        phases = list(extend_phases(phases, [number], f"{source}: "))
        phases[number - 1] = build(PhaseConfig, given[key], phases[number - 1], source, key)
    others = {key: value for key, value in given.items() if key not in numbered.values()}
    past = Settings(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Settings)})
    shared = build(Settings, others, past, source, "")
    with naming(source):
        return Config(**{f.name: getattr(shared, f.name) for f in dataclasses.fields(shared)}, phases=tuple(phases))


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Name the source of settings in the error about them."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def build(cls: type[Any], given: Any, default: Any, source: str, name: str) -> Any:
    """Return `default` with the given values. Raise UserError for unknown keys and wrong types."""
    if not isinstance(given, dict):
        raise UserError(f"{source}: {name} is a section, not a value")
    kinds = typing.get_type_hints(cls)
    prefix = f"{name}." if name else ""
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if key not in kinds:
            raise UserError(f"{source}: unknown key {prefix}{key}{suggestion(key, kinds)}")
        if dataclasses.is_dataclass(kinds[key]):
            changes[key] = build(kinds[key], value, getattr(default, key), source, prefix + key)
        else:
            changes[key] = convert(value, kinds[key], f"{source}: {prefix}{key}")
    with naming(source):
        return dataclasses.replace(default, **changes)


def convert(value: Any, kind: Any, name: str) -> Any:
    """Convert a TOML value to the type of its field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    names = [
        f'"{UNSET}"' if option is types.NoneType else str(getattr(option, "__name__", option))
        for option in arguments or (kind,)
    ]
    if origin is Literal:
        if (type(value), value) not in [(type(choice), choice) for choice in arguments]:  # 20 and 20.0 are equal
            raise UserError(f"{name} = {value!r}{suggestion(str(value), names)}; one of {', '.join(names)}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise UserError(f"{name} = {value!r} should be a list")
        return tuple(convert(item, arguments[0], name) for item in value)
    if origin in (typing.Union, types.UnionType):
        choices = {
            a for option in arguments for a in (typing.get_args(option) if typing.get_origin(option) is Literal else ())
        }
        if choices:
            return convert(value, Literal[tuple(sorted(choices))], name)
        if value == UNSET and types.NoneType in arguments:
            return None
        if any(type(value) is option for option in arguments):
            return value
        if type(value) is int and float in arguments:
            return float(value)
    elif kind is float and type(value) in (int, float):
        return float(value) if abs(value) < 1e308 else math.inf  # outside all bounds
    elif type(value) is kind:
        return value
    raise UserError(f"{name} = {value!r} should be of type {' or '.join(names)}")


def to_toml(config: Config) -> str:
    """Write all values of a config as TOML. Fields with the value None are omitted."""
    content = tables(config)
    for name, value in flatten_tables(content).items():
        refuse_other_text(name, value)
    return tomli_w.dumps(to_toml_values(content))


def to_toml_values(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with lists instead of tuples, without None."""
    return {
        name: to_toml_values(value) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else value
        for name, value in table.items()
        if value is not None
    }


def refuse_other_text(name: str, value: Any) -> None:
    """Raise UserError for text that is not UTF-8, such as some names of files. TOML cannot store it."""
    if isinstance(value, str) and escape_text(value) != value:
        raise UserError(f"{name} {escape_text(value)} is not UTF-8 text: rename the file or folder")
