"""Read the file of a sweep: its runs, the run from which each takes its first phases, and the evaluations."""

import dataclasses
import os
import re
import shlex
import tomllib
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sjepa.bounds import SEED
from sjepa.config import Config
from sjepa.errors import UserError, suggestion
from sjepa.fields import FLAG, TABLE, TEXT, Kind, list_of, require, shorten
from sjepa.files import read_text
from sjepa.model.named import UNTRAINED
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import change_config, load_settings, naming
from sjepa.train.branch import shareable_phases

NAME = re.compile(r"[\w.+-]+")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
WORDS = Kind("text or a list of text", lambda value: TEXT.accepts(value) or list_of(TEXT).accepts(value))
SEEDS = Kind(
    "a list of different whole numbers from 0",
    lambda value: (
        isinstance(value, list)
        and bool(value)
        and all(type(seed) is int and SEED.accepts(seed) for seed in value)
        and len(set(value)) == len(value)
    ),
)
PHASE = Kind("the number of a phase", lambda value: type(value) is int and value > 0)
# Keys of each table, by name.
FILE_KEYS = {"sweep": TABLE, "runs": TABLE, "encoders": TABLE, "evaluate": TABLE}
SWEEP_KEYS = {"preset": TEXT, "data": TEXT, "out": TEXT, "seeds": SEEDS, "settings": TABLE, "launch": TEXT}
RUN_KEYS = {"preset": TEXT, "seeds": SEEDS}  # in addition to settings
ENCODER_KEYS = {"encoder": TEXT, "run": TEXT, "phase": PHASE, "untrained": FLAG, "seeds": SEEDS}
EVALUATION_KEYS = {"command": TEXT, "makes": TEXT, "on": WORDS, "needs": TEXT}
PLACEHOLDERS = ("encoder", "run", "folder")


@dataclass(frozen=True)
class SweepEntry:
    """One entry of the sweep: a run to train and evaluate, or another encoder to evaluate."""

    name: str
    folder: Path
    encoder: str
    """The value for `--encoder`."""
    config: Config | None = None
    """The config of a run; None for another encoder."""
    parent: "SweepEntry | None" = None
    """The run that trains the first phases of this one, or that this encoder belongs to."""
    shared: int = 0
    """Number of phases that the parent must have finished."""


@dataclass(frozen=True)
class EvaluationCommand:
    """A command that evaluates an encoder."""

    name: str
    words: tuple[str, ...]
    """Arguments of `sjepa`, with placeholders."""
    makes: str
    """The file that it writes, below the folder of the run or encoder."""
    on: tuple[str, ...] = ()
    """Patterns of names to evaluate; empty for all."""
    needs: str = ""
    """A path that must exist, or the evaluation is skipped."""

    def is_for(self, item: SweepEntry) -> bool:
        """Whether it evaluates this item. A command with `{run}` is only for runs."""
        named = not self.on or any(fnmatchcase(item.name, pattern) for pattern in self.on)
        return named and (item.config is not None or not any("{run}" in word for word in self.words))

    def arguments(self, item: SweepEntry) -> list[str]:
        values = {"encoder": item.encoder, "run": str(item.folder), "folder": str(item.folder)}
        words = [re.sub(r"\{(\w+)\}", lambda found: values[found[1]], word) for word in self.words]
        return [*words, *(["--replace"] if self.must_replace(item) and "--replace" not in words else [])]

    def must_replace(self, item: SweepEntry) -> bool:
        """Whether the command would refuse its folder, which may have an evaluation of an earlier state of the run."""
        return self.words[0] == "superb" and self.result(item).parent.is_dir()

    def result(self, item: SweepEntry) -> Path:
        return item.folder / self.makes


@dataclass(frozen=True)
class Sweep:
    file: Path
    data: str
    out: Path
    items: tuple[SweepEntry, ...]
    evaluations: tuple[EvaluationCommand, ...] = ()
    launch: tuple[str, ...] = field(default=())
    """The command that starts training, instead of `python -m sjepa`."""

    @property
    def runs(self) -> list[SweepEntry]:
        return [item for item in self.items if item.config is not None]

    def select(self, patterns: Sequence[str]) -> list[SweepEntry]:
        """The items that match the patterns, in the order of the file. Without patterns, all of them."""
        names = [item.name for item in self.items]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(
                    f"--only {pattern}: {self.file} has no such run{suggestion(pattern, names)}; see --list"
                )
        return [i for i in self.items if not patterns or any(fnmatchcase(i.name, pattern) for pattern in patterns)]


def read_sweep(file: Path, commands: Container[str], out: Path | None = None, data: str = "") -> Sweep:
    """Read and check the file of a sweep. Evaluations must be among `commands`.

    `out` and `data` override the values in the file.
    """
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    try:
        given = tomllib.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid TOML: {error}") from error
    check_keys(given, FILE_KEYS, str(file))
    about = given.get("sweep", {})
    where = f"{file}: sweep"
    check_keys(about, SWEEP_KEYS, where)
    if not given.get("runs"):
        raise UserError(f"{file}: there is no run; add one as a table [runs.NAME]")
    data = data or expand(require(about, "data", TEXT, where), f"{where}.data")
    out = out or Path(expand(about.get("out", f"runs/{file.stem}"), f"{where}.out"))
    items = read_runs(given["runs"], about, file, out)
    items += read_encoders(given.get("encoders", {}), items, file, out)
    names = [item.name for item in items]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"{file}: the name {twice} is used twice")
    evaluations = tuple(
        read_evaluation(name, table, file, names, commands) for name, table in given.get("evaluate", {}).items()
    )
    launch = split_words(expand(about.get("launch", ""), f"{where}.launch"), f"{where}.launch")
    return Sweep(file, data, out, tuple(items), evaluations, launch)


def read_runs(given: dict[str, Any], about: dict[str, Any], file: Path, out: Path) -> list[SweepEntry]:
    """Read the runs of a sweep. Each takes its first phases from the earliest run with its seed that shares them."""
    runs: list[SweepEntry] = []
    for name, table in given.items():
        where = f"{file}: runs.{name}"
        check_name(name, table, where)
        if "seed" in table:
            raise UserError(f"{where}: give seeds, as in seeds = [0, 1], instead of seed")
        check_keys({key: value for key, value in table.items() if key in RUN_KEYS}, RUN_KEYS, where)
        config = build_config(table, about, file, where)
        for seed in table.get("seeds", about.get("seeds", [0])):
            full = f"{name}-{seed}"
            seeded = dataclasses.replace(config, seed=seed)
            parent, shared = find_parent(seeded, [run for run in runs if run.config and run.config.seed == seed])
            runs.append(SweepEntry(full, out / full, str(out / full), seeded, parent, shared))
    return runs


def build_config(table: dict[str, Any], about: dict[str, Any], file: Path, where: str) -> Config:
    """Build the config of a run: the sweep's preset and settings, then its own. A preset of its own replaces both."""
    own = {key: value for key, value in table.items() if key not in RUN_KEYS}
    preset = table.get("preset", about.get("preset"))
    if preset is None:
        raise UserError(
            f"{file}: sweep.preset is missing; it should be the name of a preset or the path of a TOML file"
        )
    layers = [(own, where)]
    if "preset" not in table:
        layers.insert(0, (about.get("settings", {}), f"{file}: sweep.settings"))
    with naming(where):
        config = load_settings(preset, file.parent, ())
    for settings, source in layers:
        config = change_config(config, nest(expand_all(settings, source), source), source)
    return config


def find_parent(config: Config, runs: Sequence[SweepEntry]) -> tuple[SweepEntry | None, int]:
    """Find the first run that shares the most initial phases with a config. Returns it and the number of phases."""
    best: tuple[SweepEntry | None, int] = (None, 0)
    for run in runs:
        assert run.config is not None
        shared = max(shareable_phases(run.config, config), default=0)
        if shared > best[1]:
            best = (run, shared)
    return best


def read_encoders(given: dict[str, Any], runs: Sequence[SweepEntry], file: Path, out: Path) -> list[SweepEntry]:
    """Read the other encoders to evaluate: features without training, untrained encoders, earlier phases of runs."""
    by_name = {run.name: run for run in runs}
    found = []
    for name, table in given.items():
        where = f"{file}: encoders.{name}"
        check_name(name, table, where)
        check_keys(table, ENCODER_KEYS, where)
        ways = [key for key in ("encoder", "phase", "untrained") if table.get(key)]
        if len(ways) != 1 or ("run" in table) == ("encoder" in table):
            raise UserError(f"{where}: give encoder, or run with phase or untrained")
        if "encoder" in table:
            encoder = expand(table["encoder"], f"{where}.encoder")
            found.append(SweepEntry(name, out / name, encoder))
            continue
        for suffix in [f"-{seed}" for seed in table.get("seeds", [])] or [""]:
            wanted = table["run"] + suffix
            if wanted not in by_name:
                raise UserError(f"{where}.run: there is no run {wanted}{suggestion(wanted, by_name)}")
            run = by_name[wanted]
            assert run.config is not None
            phase = table.get("phase", 1)
            if phase >= len(run.config.phases) and "phase" in table:
                raise UserError(f"{where}.phase = {phase}: {wanted} keeps the encoders of phases before its last")
            ended = RunFolder(run.folder).phase_encoder(phase)
            encoder = f"{UNTRAINED}{run.folder}" if table.get("untrained") else str(ended)
            found.append(SweepEntry(name + suffix, out / (name + suffix), encoder, None, run, phase))
    return found


def read_evaluation(
    name: str, table: Any, file: Path, names: Sequence[str], commands: Container[str]
) -> EvaluationCommand:
    where = f"{file}: evaluate.{name}"
    check_name(name, table, where)
    check_keys(table, EVALUATION_KEYS, where)
    command = require(table, "command", TEXT, where)
    words = [expand(word, f"{where}.command") for word in split_words(command, f"{where}.command")]
    words = words[1:] if words[:1] == ["sjepa"] else words
    for word in words:
        for placeholder in re.findall(r"\{(\w*)\}", word):
            if placeholder not in PLACEHOLDERS:
                known = ", ".join(f"{{{p}}}" for p in PLACEHOLDERS)
                raise UserError(f"{where}.command: there is no {{{placeholder}}}; there are {known}")
    if not words or words[0] not in commands:
        raise UserError(f"{where}.command: sjepa has no command {' '.join(words[:1])!r}")
    makes = require(table, "makes", TEXT, where)
    if Path(makes).is_absolute() or ".." in Path(makes).parts:
        raise UserError(f"{where}.makes = {makes!r}: give a path below the folder of the run")
    on = table.get("on", [])
    on = [on] if isinstance(on, str) else on
    for pattern in on:
        if not any(fnmatchcase(each, pattern) for each in names):
            raise UserError(f"{where}.on: there is no {pattern}{suggestion(pattern, names)}")
    return EvaluationCommand(name, tuple(words), makes, tuple(on), expand(table.get("needs", ""), f"{where}.needs"))


def split_words(text: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def check_name(name: str, table: Any, where: str) -> None:
    if not isinstance(table, dict):
        raise UserError(f"{where} is a table, not a value")
    if not NAME.fullmatch(name) or name[0] in ".-":
        raise UserError(f"{where}: a name has letters, digits and . _ + - only, because it becomes a folder name")


def check_keys(given: dict[str, Any], kinds: dict[str, Kind], where: str) -> None:
    """Refuse unknown keys, and values of the wrong kind."""
    for key in given:
        if key not in kinds:
            raise UserError(f"{where}: unknown key {key}{suggestion(key, kinds)}; there are {', '.join(kinds)}")
        require(given, key, kinds[key], where)


def nest(table: dict[str, Any], where: str) -> dict[str, Any]:
    """Split quoted keys such as "phase1.hard", so that they mean the same as unquoted ones."""
    nested: dict[str, Any] = {}
    for key, value in table.items():
        first, dot, rest = key.partition(".")
        inner = nest({rest: value}, where) if dot else nest(value, where) if isinstance(value, dict) else value
        if not isinstance(inner, dict):
            nested[first] = inner
        elif isinstance(nested.setdefault(first, {}), dict):
            nested[first] = nested[first] | inner
        else:
            raise UserError(f"{where}: {first} is a value and a section")
    return nested


def expand(text: str, where: str) -> str:
    """Replace environment variables in text."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise UserError(f"{where} = {shorten(text)}: the environment variable {name} is not set")
        return os.environ[name]

    return VARIABLE.sub(value, text)


def expand_all(table: dict[str, Any], where: str) -> dict[str, Any]:
    """Replace environment variables in all settings."""
    changed: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            changed[key] = expand_all(value, f"{where}.{key}")
        else:
            changed[key] = expand(value, f"{where}.{key}") if isinstance(value, str) else value
    return changed
