"""Every setting of a run: typed, printable as TOML, with presets that state only differences."""

import dataclasses
import math
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w

from sjepa.audio.augment import AugmentConfig
from sjepa.audio.mfcc import MfccConfig
from sjepa.bounds import COUNT, INDEX, NOT_NEGATIVE, POSITIVE, SEED, SHARE, check_bounds
from sjepa.data.loader import BatchConfig
from sjepa.data.masking import MaskConfig
from sjepa.errors import UserError, suggestion
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import PredictorConfig
from sjepa.phases import Phase, PhaseConfig
from sjepa.targets.ema import EmaConfig
from sjepa.targets.fit import GmmConfig
from sjepa.targets.kinds import KINDS
from sjepa.targets.layer import LayerConfig


@dataclass(frozen=True)
class TrainConfig:
    """The optimizer and the run's housekeeping."""

    beta1: Annotated[float, SHARE] = 0.9
    """AdamW's first decay."""
    beta2: Annotated[float, SHARE] = 0.99
    """AdamW's second decay."""
    weight_decay: Annotated[float, SHARE] = 1e-3
    """AdamW's weight decay, on all parameters."""
    clip: Annotated[float, POSITIVE] = 1.0
    """Largest gradient norm (ours; the paper gives none)."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16 autocast on a GPU with fp32 norms, softmax, KL, mixture and EMA; a CPU always computes in fp32."""
    visible_path: Literal["encoder", "predictor"] = "encoder"
    """Which output the cluster head reads at visible frames."""
    masked_path: Literal["predictor", "both"] = "predictor"
    """Which output the cluster head reads at masked frames: the predictor's, or the encoder's too as a second term."""
    compile: bool = True
    """Compile the network on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto uses a GPU if there is one."""
    log_every: Annotated[int, COUNT] = 100
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: Annotated[int, COUNT] = 2000
    """Steps between checkpoints."""
    checkpoint_minutes: Annotated[float, NOT_NEGATIVE] = 0.0
    """Minutes after which a checkpoint is written as well, at the next log line; 0 for never."""
    keep_checkpoints: Annotated[int, COUNT] = 2
    """Newest checkpoints to keep; those at the ends of phases always stay."""
    recompute: bool = False
    """Compute each transformer layer a second time in the backward pass instead of keeping what it needs: less memory,
    about a fifth more time."""
    accumulate: Annotated[int, COUNT] = 1
    """Parts of a rank's batch that run one after another before one optimizer step: less memory, the same result."""
    wandb: str = ""
    """Weights & Biases project to log to as well; empty for none."""
    keep_every: Annotated[int, INDEX] = 0
    """Also keep the checkpoints of all multiples of this many steps, to evaluate them with --step; 0 keeps none."""
    bad_steps: Annotated[int, COUNT] = 50
    """Consecutive steps without a finite gradient that end the run."""


@dataclass(frozen=True)
class Settings:
    """What does not belong to one phase; the defaults are the paper's."""

    seed: Annotated[int, SEED] = 0
    """Seed of everything random."""
    init_from: str = ""
    """An encoder to start from instead of random weights: a run, a Hugging Face HuBERT folder or a file of weights."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    mask: MaskConfig = field(default_factory=MaskConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    mfcc: MfccConfig = field(default_factory=MfccConfig)
    gmm: GmmConfig = field(default_factory=GmmConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    layer: LayerConfig = field(default_factory=LayerConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


PAPERS_PHASES = (
    PhaseConfig(),
    PhaseConfig(targets="online-gmm", k=500, lr=2.5e-5, visible_loss_until=0.5, augment_until=0.5),
)


@dataclass(frozen=True)
class Config(Settings):
    """A whole pre-training run; the defaults are the paper's.

    On the command line and in TOML files the phases are called phase1, phase2 and so on.
    """

    phases: tuple[PhaseConfig, ...] = PAPERS_PHASES

    def __post_init__(self) -> None:
        for name, section in sections(self).items():
            check_bounds(section, f"{name}." if name else "")
        check_phases(self)
        if self.train.keep_every % self.train.checkpoint_every:
            raise UserError(
                f"train.keep_every = {self.train.keep_every}: checkpoints are written every "
                f"{self.train.checkpoint_every} steps (train.checkpoint_every), so give a multiple of that"
            )
        if self.mask.lowest is not None and self.mask.lowest > self.mask.ratio:
            raise UserError(f"mask.lowest = {self.mask.lowest}: it should lie between 0 and mask.ratio")
        if self.layer.choice is not None and not 0 <= self.layer.choice < self.encoder.layers:
            raise UserError(
                f"layer.choice = {self.layer.choice}: the encoder has layers 0 to {self.encoder.layers - 1}"
            )

    def schedule(self) -> list[Phase]:
        """The phases at their places in the run."""
        placed: list[Phase] = []
        for number, phase in enumerate(self.phases, 1):
            start, rate = (placed[-1].end, placed[-1].lr(placed[-1].end - 1)) if placed else (0, 0.0)
            placed.append(Phase(number, start, phase, self.ema, rate))
        return placed

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return sum(phase.steps for phase in self.phases)

    @property
    def audio_seconds(self) -> float:
        """Audio that the whole run processes, repeated or not."""
        return sum(phase.steps * self.batches_in(phase).seconds for phase in self.phases)

    def batches_in(self, phase: PhaseConfig) -> BatchConfig:
        """The batches of a phase: those of the run, unless the phase has its own size or lengths."""
        return dataclasses.replace(
            self.batches,
            seconds=phase.batch_seconds or self.batches.seconds,
            buckets=phase.buckets or self.batches.buckets,
        )


def check_phases(config: Config) -> None:
    """Refuse phases that cannot follow each other, or whose batches do not fit the model."""
    for number, phase in enumerate(config.phases, 1):
        name = phase_name(number)
        kind = None if phase.targets == "same" else KINDS[phase.targets]
        if number == 1 and (kind is None or kind.reads_encoder):
            raise UserError(f"{name}.targets = {phase.targets!r}: phase 1 has no trained encoder to take targets from")
        if kind is not None and phase.centred and not kind.can_centre:
            raise UserError(f"{name}.centred: {phase.targets} standardises its features, they cannot be centred")
        batches = config.batches_in(phase)
        if not batches.buckets:
            raise UserError("batches.buckets: at least one length in seconds is needed, and all above 0")
        if max(batches.buckets) > batches.max_seconds:
            raise UserError("batches.buckets: the longest bucket is longer than batches.max_seconds")
        longest = round(max(batches.buckets) * 50)
        if longest > config.predictor.positions:
            raise UserError(
                f"predictor.positions = {config.predictor.positions}: the longest bucket has {longest} frames"
            )


EXTENDS = "extends"  # the key of a settings file that names what it builds on
UNSET = "none"  # how TOML, which has no null, says that an optional field has no value
PHASE_SECTION = re.compile(r"phase([1-9]\d{0,3})")


def phase_name(number: int) -> str:
    """What a phase is called on the command line and in files."""
    return f"phase{number}"


# Fields that a continued run may change: where and how it is computed, not what.
FREE = frozenset(
    {
        "train.device",
        "train.compile",
        "train.checkpoint_every",
        "train.checkpoint_minutes",
        "train.keep_checkpoints",
        "train.keep_every",
        "batches.workers",
        "batches.shard_cache",
        "batches.shard_cache_gb",
        "train.accumulate",
        "train.recompute",
        "train.wandb",
        "batches.memory_gb",
    }
)


def preset_names() -> list[str]:
    return sorted(
        p.name.removesuffix(".toml") for p in resources.files("sjepa.presets").iterdir() if p.name.endswith(".toml")
    )


def load_preset(name: str) -> Config:
    """A preset by its name, or a settings file by its path.

    >>> from sjepa import load_preset
    >>> load_preset("paper").phases[0].steps
    400000
    """
    return load_settings(name, Path(), ())


def load_settings(name: str, folder: Path, chain: tuple[str, ...]) -> Config:
    """A preset by its name, or a settings file by its path from `folder`; `chain` holds the files that build on it."""
    if name.endswith(".toml"):
        path = folder / name
        if not path.is_file():
            wanted = f", which {chain[-1]} extends" if chain else ""
            raise UserError(f"there is no config file {path}{wanted}")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not valid TOML: {error}") from error
        return from_toml(text, str(path), path.parent, chain)
    if name not in preset_names():
        where = f"{chain[-1]}: extends = {name!r}: " if chain else ""
        raise UserError(
            f"{where}there is no preset {name!r}{suggestion(name, preset_names())}; presets are "
            f"{', '.join(preset_names())}{', and a path to a file ends in .toml' if chain else ''}"
        )
    text = resources.files("sjepa.presets").joinpath(f"{name}.toml").read_text("utf-8")
    return from_toml(text, f"preset {name}", Path(), chain)


def from_toml(text: str, source: str, folder: Path = Path(), chain: tuple[str, ...] = ()) -> Config:
    """The config that a text states; what it leaves out is as in what it extends, or as in the paper."""
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


def change_config(config: Config, given: dict[str, Any], source: str) -> Config:
    """A config with the values of TOML tables in place."""
    phases = list(config.phases)
    numbered = {int(found[1]): key for key in given if (found := PHASE_SECTION.fullmatch(key))}
    for number, key in sorted(numbered.items()):
        if number == len(phases) + 1:
            phases.append(phases[-1])  # a further phase starts from the settings of the one before
        elif number > len(phases):
            raise UserError(f"{source}: there is a {key}, but no {phase_name(number - 1)}")
        phases[number - 1] = build(PhaseConfig, given[key], phases[number - 1], source, key)
    others = {key: value for key, value in given.items() if key not in numbered.values()}
    past = Settings(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Settings)})
    shared = build(Settings, others, past, source, "")
    return Config(**{f.name: getattr(shared, f.name) for f in dataclasses.fields(shared)}, phases=tuple(phases))


def build(cls: type[Any], given: Any, default: Any, source: str, name: str) -> Any:
    """`default` with the given values in place; unknown keys and wrong types are errors."""
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
    return dataclasses.replace(default, **changes)


def convert(value: Any, kind: Any, name: str) -> Any:
    """A TOML value as the field's type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    names = [str(getattr(option, "__name__", option)) for option in arguments or (kind,)]
    if origin is Literal:
        if value not in arguments:
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
        if value == "none" and type(None) in arguments:  # TOML has no null
            return None
    elif kind is float and type(value) in (int, float):
        return float(value) if abs(value) < 1e308 else math.inf  # which no bound accepts
    elif type(value) is kind:
        return value
    raise UserError(f"{name} = {value!r} should be of type {' or '.join(names)}")


def sections(config: Config) -> dict[str, Any]:
    """The dataclasses that hold a config's values, by the name of their section; the top level has no name."""
    found: dict[str, Any] = {"": config}
    for f in dataclasses.fields(Settings):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            found[f.name] = value
    return found | {phase_name(number): phase for number, phase in enumerate(config.phases, 1)}


def tables(config: Config) -> dict[str, dict[str, Any]]:
    """Every value by the name of its section, then of its field."""
    return {
        name: {
            f.name: getattr(section, f.name)
            for f in dataclasses.fields(section)
            if f.name != "phases" and not dataclasses.is_dataclass(getattr(section, f.name))
        }
        for name, section in sections(config).items()
    }


def flatten(config: Config) -> dict[str, Any]:
    """Every value by the dotted name of its field, such as `phase2.steps`."""
    return {
        f"{section}.{name}" if section else name: value
        for section, values in tables(config).items()
        for name, value in values.items()
    }


def to_toml(config: Config) -> str:
    """All values; a field without one (None) is left out."""
    plain = {
        section: {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}
        for section, values in tables(config).items()
    }
    return tomli_w.dumps(plain.pop("") | plain)


class Difference(NamedTuple):
    """A field in which two configs differ."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} was {self.old}, now {self.new}"


def all_differences(old: Config, new: Config) -> list[Difference]:
    """Fields in which two configs differ; None stands for a phase that one of them lacks."""
    a, b = flatten(old), flatten(new)
    names = dict.fromkeys([*a, *b])
    return [Difference(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def differences(old: Config, new: Config) -> list[Difference]:
    """The same, without fields that change where and how a run is computed, not what."""
    return [difference for difference in all_differences(old, new) if difference.name not in FREE]


def add_phases(config: Config, arguments: list[str]) -> Config:
    """A config with the further phases that options name: `--phase3.steps 5` adds phase 3, like phase 2 otherwise."""
    phases = list(config.phases)
    named = {found[1] for argument in arguments if (found := re.match(r"--phase([1-9]\d{0,3})\.", argument))}
    for number in sorted(int(name) for name in named):
        if number == len(phases) + 1:
            phases.append(phases[-1])
        elif number > len(phases):
            raise UserError(f"--{phase_name(number)}: there is no {phase_name(number - 1)}")
    return dataclasses.replace(config, phases=tuple(phases))


def with_config(command: type[Any], config: Config) -> type[Any]:
    """A command's dataclass with every setting of a config as further options: --seed, --phase1.steps and so on."""
    import tyro

    phases = [(phase_name(n), PhaseConfig, field(default=phase)) for n, phase in enumerate(config.phases, 1)]
    settings = dataclasses.make_dataclass("Settings", phases, bases=(Settings,), frozen=True)
    default = settings(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Settings)})
    option = ("config", Annotated[settings, tyro.conf.arg(name="")], field(default=default))
    extended = dataclasses.make_dataclass(command.__name__, [option], bases=(command,), frozen=True)
    extended.__doc__ = command.__doc__
    return extended


def from_command_line(parsed: Any) -> Config:
    """The config that a command was given in the options of `with_config`."""
    values = {f.name: getattr(parsed, f.name) for f in dataclasses.fields(parsed)}
    shared = {f.name: values.pop(f.name) for f in dataclasses.fields(Settings)}
    return Config(**shared, phases=tuple(values.values()))
