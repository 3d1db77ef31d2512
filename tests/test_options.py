"""Every numeric option of every command has bounds, which are checked before any work starts."""

import dataclasses
import importlib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro
from calls import sjepa

from sjepa.bounds import Bound
from sjepa.commands import COMMANDS
from sjepa.commands.analyze import SUBJECTS as ANALYSES
from sjepa.commands.bench import SUBJECTS as BENCHES
from sjepa.config import Config
from sjepa.phases import PhaseConfig
from sjepa.subcommands import option


@pytest.mark.parametrize(
    "given", ["--branch-from=runs/a", "--branch_from=runs/a", "--branch-from runs/a", "--branch_from runs/a"]
)
def test_an_option_is_found_before_parsing_however_it_is_written(given: str) -> None:
    assert option(["--out", "runs/b", *given.split()], "--branch-from") == "runs/a"


def option_classes() -> dict[str, type[Any]]:
    """The dataclass of each command's options, by the words that call it."""
    found = {f"analyze {name}": kind for name, (kind, _, _) in ANALYSES.items()}
    modules = {name: f"sjepa.commands.{name}" for name in COMMANDS if name not in ("analyze", "bench")}
    modules |= {f"bench {name}": f"sjepa.speed.{name}" for name in BENCHES}
    for name, path in modules.items():
        module = importlib.import_module(path)
        (found[name],) = (
            kind for kind in vars(module).values() if dataclasses.is_dataclass(kind) and kind.__module__ == path
        )
    return found


def numbers(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The numeric fields of a dataclass and of those in it: name and type with its metadata."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        if dataclasses.is_dataclass(plain):
            yield from numbers(plain, f"{prefix}{field.name}.")
            continue
        parts = typing.get_args(plain) if isinstance(plain, types.UnionType) else (plain,)
        parts = typing.get_args(parts[0]) if typing.get_origin(parts[0]) is tuple else parts
        if {int, float} & set(parts):
            yield f"{prefix}{field.name}", hint


def test_every_numeric_option_and_setting_has_bounds() -> None:
    kinds = option_classes() | {"config": Config, "phase": PhaseConfig}
    without = [
        f"{command} {name}"
        for command, kind in kinds.items()
        for name, hint in numbers(kind)
        if not any(isinstance(part, Bound) for part in getattr(hint, "__metadata__", ()))
    ]
    assert not without


NEEDED: dict[str, tuple[str, ...]] = {
    "analyze": ("{}",),
    "embed": ("{}", "--encoder", "{}", "--out", "{}/out"),
    "export": ("{}", "{}/out", "--to", "hf"),
    "cost": ("--encoder", "mfcc"),
    "figures": ("{}",),
    "index": ("{}", "--out", "{}/out"),
    "plan": ("--hours", "1"),
    "pretrain": ("--out", "{}/run"),
    "probe": ("--encoder", "mfcc", "--data", "{}"),
    "report": ("{}",),
    "shard": ("{}", "--out", "{}/out"),
    "superb": ("asr", "--encoder", "mfcc", "--data", "{}"),
    "sweep": ("{}",),
    "units": ("--encoder", "mfcc", "--data", "{}"),
    "watch": ("{}",),
}


def required_words(kind: type) -> tuple[str, ...]:
    """The fields of a command's options that have no default, with a path for each."""
    words: list[str] = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        field = kind.__dataclass_fields__[name]  # type: ignore[attr-defined]
        if field.default is field.default_factory is dataclasses.MISSING:
            positional = tyro.conf.Positional in getattr(hint, "__metadata__", ())
            words += ["{}"] if positional else [f"--{name.replace('_', '-')}", "{}"]
    return tuple(words)


CASES = [(command, name) for command, kind in option_classes().items() for name, _ in numbers(kind)]


@pytest.mark.parametrize(("command", "name"), CASES)
def test_absurd_numbers_are_refused_when_they_are_parsed(command: str, name: str, tmp_path: Path) -> None:
    flag = f"--{name.replace('_', '-')}"
    kind = option_classes()[command]
    needed = [word.format(tmp_path) for word in NEEDED.get(command.split()[0], required_words(kind))]
    for value in ("nan", "inf", "-1", "-1e300", "1e300", str(10**40), "9" * 5000):
        status, output, _ = sjepa(*command.split(), *needed, f"{flag}={value}")
        assert status == 2, (value, output)
        assert "Traceback" not in output
        assert name.split(".")[-1].replace("_", "-") in output.replace("_", "-")
    assert not list(tmp_path.iterdir())
