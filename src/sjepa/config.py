"""Everything a run can be told: typed, printable as TOML, with presets that state only differences."""

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from sjepa.audio.augment import AugmentConfig
from sjepa.audio.mfcc import MfccConfig
from sjepa.data.loader import BatchConfig
from sjepa.data.masking import MaskConfig
from sjepa.errors import UserError, suggestion
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import PredictorConfig
from sjepa.phases import Phase, PhaseConfig, check_cadences
from sjepa.targets.ema import EmaConfig
from sjepa.targets.fit import GmmConfig
from sjepa.targets.layer import LayerConfig


@dataclass(frozen=True)
class TrainConfig:
    """The optimizer and the run's housekeeping."""

    beta1: float = 0.9
    """AdamW's first decay."""
    beta2: float = 0.99
    """AdamW's second decay."""
    weight_decay: float = 1e-3
    """AdamW's weight decay, on all parameters."""
    clip: float = 1.0
    """Largest gradient norm (ours; the paper gives none)."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16 autocast on a GPU with fp32 norms, softmax, KL, mixture and EMA; a CPU always computes in fp32."""
    visible_path: Literal["encoder", "predictor"] = "encoder"
    """Which output the cluster head reads at visible frames."""
    masked_path: Literal["predictor", "both"] = "predictor"
    """What the head reads at masked frames: the predictor's output, or also the encoder's, as a term of its own."""
    compile: bool = True
    """Compile the network on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes a GPU where there is one."""
    log_every: int = 100
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: int = 2000
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the latest first; the one at the end of phase 1 always stays."""
    bad_steps: int = 50
    """Steps in a row without a finite gradient that end the run."""


@dataclass(frozen=True)
class Config:
    """A whole pre-training run; the defaults are the paper's."""

    seed: int = 0
    """All randomness follows from it."""
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
    phase1: PhaseConfig = field(default_factory=PhaseConfig)
    phase2: PhaseConfig = field(
        default_factory=lambda: PhaseConfig(targets="online-gmm", lr=2.5e-5, visible_loss_until=0.5, augment_until=0.5)
    )
    batches: BatchConfig = field(default_factory=BatchConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        flat = flatten(self)
        if self.seed < 0:
            raise UserError(f"seed = {self.seed}: a seed is not below 0")
        for name in POSITIVE:
            if flat[name] <= 0:
                raise UserError(f"{name} = {flat[name]}: it should be greater than 0")
        for name in NOT_NEGATIVE:
            if flat[name] < 0:
                raise UserError(f"{name} = {flat[name]}: it should not be below 0")
        for name in SHARES:
            if not 0 <= flat[name] <= 1:
                raise UserError(f"{name} = {flat[name]}: it should lie between 0 and 1")
        if self.mask.lowest is not None and not 0 <= self.mask.lowest <= self.mask.ratio:
            raise UserError(f"mask.lowest = {self.mask.lowest}: it should lie between 0 and mask.ratio")
        if self.phase1.lr < 0 or self.phase2.lr < 0:
            raise UserError("phase1.lr, phase2.lr: a learning rate cannot be negative")
        check_cadences("phase1", self.phase1)
        check_cadences("phase2", self.phase2)
        if self.phase1.targets not in ("mfcc-gmm", "mfcc-kmeans", "best-rq"):
            raise UserError(
                f"phase1.targets = {self.phase1.targets!r}: phase 1 has no trained encoder to take targets from"
            )
        if any(phase.targets == "best-rq" and phase.centred for phase in (self.phase1, self.phase2)):
            raise UserError("phase1.centred, phase2.centred: best-rq standardises its features, they cannot be centred")
        if not self.batches.buckets or min(self.batches.buckets) <= 0:
            raise UserError("batches.buckets: at least one length in seconds is needed, and all above 0")
        if max(self.batches.buckets) > self.batches.max_seconds:
            raise UserError("batches.buckets: the longest bucket is longer than batches.max_seconds")
        longest = round(max(self.batches.buckets) * 50)
        if longest > self.predictor.positions:
            raise UserError(
                f"predictor.positions = {self.predictor.positions}: the longest bucket has {longest} frames"
            )
        if self.layer.choice is not None and not 0 <= self.layer.choice < self.encoder.layers:
            raise UserError(
                f"layer.choice = {self.layer.choice}: the encoder has layers 0 to {self.encoder.layers - 1}"
            )

    def phases(self) -> list[Phase]:
        first = Phase(1, 0, self.phase1, self.ema)
        return [first, Phase(2, first.end, self.phase2, self.ema, lr_before=first.lr(first.end - 1))]


POSITIVE = (
    "mask.span", "gmm.k", "gmm.k_mfcc", "gmm.reservoir", "gmm.fit_hours", "layer.frames", "phase1.steps",
    "phase2.steps", "phase1.temperature", "phase2.temperature", "batches.seconds", "batches.max_seconds", "train.clip",
    "train.log_every", "train.checkpoint_every", "train.keep_checkpoints", "train.bad_steps",
)  # fmt: skip
NOT_NEGATIVE = ("encoder.attention_start", "predictor.attention_start")
SHARES = (
    "mask.ratio", "augment.p_noise", "augment.p_mix", "augment.mix_longest", "gmm.decay", "ema.fast", "ema.slow",
    "layer.smoothing", "batches.bad_share", "encoder.dropout", "encoder.layerdrop", "predictor.dropout",
)  # fmt: skip
# Fields that a continued run may change: where and how it is computed, not what.
FREE = frozenset(
    {
        "train.device",
        "train.compile",
        "train.checkpoint_every",
        "train.keep_checkpoints",
        "batches.workers",
        "batches.memory_gb",
    }
)


def preset_names() -> list[str]:
    return sorted(
        p.name.removesuffix(".toml") for p in resources.files("sjepa.presets").iterdir() if p.name.endswith(".toml")
    )


def load_preset(name: str) -> Config:
    """A preset by its name, or a TOML file by its path."""
    if name.endswith(".toml"):
        return load_toml(Path(name))
    if name not in preset_names():
        raise UserError(
            f"there is no preset {name!r}{suggestion(name, preset_names())}; presets are {', '.join(preset_names())}"
        )
    return from_toml(resources.files("sjepa.presets").joinpath(f"{name}.toml").read_text(), f"preset {name}")


def load_toml(path: Path) -> Config:
    if not path.is_file():
        raise UserError(f"there is no config file {path}")
    return from_toml(path.read_text(), str(path))


def from_toml(text: str, source: str) -> Config:
    try:
        return build(Config, tomllib.loads(text), Config(), source, "")
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not valid TOML: {error}") from error


def build(cls: type[Any], given: dict[str, Any], default: Any, source: str, prefix: str) -> Any:
    """`default` with the given values in place; unknown keys and wrong types are errors."""
    kinds = typing.get_type_hints(cls)
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if key not in kinds:
            raise UserError(f"{source}: unknown key {prefix}{key}{suggestion(key, kinds)}")
        if dataclasses.is_dataclass(kinds[key]):
            if not isinstance(value, dict):
                raise UserError(f"{source}: {prefix}{key} is a section, not a value")
            changes[key] = build(kinds[key], value, getattr(default, key), source, f"{prefix}{key}.")
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
        if any(type(value) is option for option in arguments):
            return value
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif type(value) is kind:
        return value
    raise UserError(f"{name} = {value!r} should be of type {' or '.join(names)}")


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every field by its dotted name."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        flat |= flatten(value, f"{prefix}{f.name}.") if dataclasses.is_dataclass(value) else {prefix + f.name: value}
    return flat


def to_toml(config: Config) -> str:
    lines, section = [], ""
    for name, value in flatten(config).items():
        if value is None:
            continue
        head, _, key = name.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        lines.append(f"{key} = {toml_value(value)}")
    return "\n".join(lines).strip() + "\n"


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


def differences(old: Config, new: Config) -> list[str]:
    """Fields in which two configs of one run may not differ, as lines."""
    a, b = flatten(old), flatten(new)
    return [f"{name} was {a[name]}, now {b[name]}" for name in a if a[name] != b[name] and name not in FREE]
