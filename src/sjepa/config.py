"""Every setting of a run, typed and checked. `settings_file` reads and writes it as TOML."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from sjepa.audio.augment import AugmentConfig
from sjepa.audio.frames import FRAMES_PER_SECOND
from sjepa.audio.mfcc import MfccConfig
from sjepa.bounds import COUNT, INDEX, NOT_NEGATIVE, POSITIVE, SEED, SHARE, check_bounds
from sjepa.data.loader import BatchConfig
from sjepa.data.masking import MaskConfig
from sjepa.device import Device
from sjepa.errors import UserError
from sjepa.fields import flatten_tables
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import PredictorConfig
from sjepa.phase_names import phase_name
from sjepa.phases import Phase, PhaseConfig
from sjepa.targets.ema import EmaConfig
from sjepa.targets.fit import GmmConfig
from sjepa.targets.kinds import KINDS
from sjepa.targets.layer import LayerConfig


@dataclass(frozen=True)
class TrainConfig:
    """Optimizer, device, logging and checkpoints."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon updates the weight matrices of transformer layers with Muon, and all other parameters with AdamW. It
    is not in the paper. It learns more per step, and allows a higher learning rate."""
    beta1: Annotated[float, SHARE] = 0.9
    """Beta 1 of AdamW."""
    beta2: Annotated[float, SHARE] = 0.99
    """Beta 2 of AdamW."""
    weight_decay: Annotated[float, SHARE] = 1e-3
    """Weight decay of all parameters that AdamW updates."""
    muon_momentum: Annotated[float, SHARE] = 0.95
    """Momentum of Muon."""
    muon_weight_decay: Annotated[float, SHARE] = 0.1
    """Weight decay of the matrices that Muon updates."""
    clip: Annotated[float, POSITIVE] = 1.0
    """Clip gradients to this norm (the paper gives no value)."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16 uses autocast on a GPU and keeps norms, softmax, KL, mixture and EMA in fp32. A CPU always uses fp32."""
    visible_path: Literal["encoder", "predictor"] = "encoder"
    """The output that the cluster head reads at visible frames."""
    masked_path: Literal["predictor", "both"] = "predictor"
    """The output that the cluster head reads at masked frames: the predictor's, or both, as two terms."""
    compile: bool = True
    """Compile the network on a GPU, and replay its steps as CUDA graphs."""
    device: Device = "auto"
    """Device; auto uses a GPU if there is one."""
    log_every: Annotated[int, COUNT] = 100
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: Annotated[int, COUNT] = 2000
    """Steps between checkpoints."""
    checkpoint_minutes: Annotated[float, NOT_NEGATIVE] = 0.0
    """Also write a checkpoint after this many minutes, at the next log line; 0 turns this off."""
    keep_checkpoints: Annotated[int, COUNT] = 2
    """Number of newest checkpoints to keep. Checkpoints at the ends of phases are always kept."""
    recompute: bool = False
    """Recompute each transformer layer in the backward pass instead of storing its activations: less memory, but more
    time."""
    accumulate: Annotated[int, COUNT] = 1
    """Split each rank's batch into this many parts and accumulate their gradients: less memory, the same result,
    except that partners for noise and mixing come from the same part."""
    held_out: str = ""
    """Audio to measure on and never train on: a folder, an index or shards. At each check of the layers, masked
    prediction is measured on it, and on as much training audio."""
    wandb: str = ""
    """Weights & Biases project to log to; empty for none."""
    keep_every: Annotated[int, INDEX] = 0
    """Also keep the checkpoints at multiples of this many steps, to evaluate them with --step; 0 keeps none."""
    bad_steps: Annotated[int, COUNT] = 50
    """Stop the run after this many consecutive steps without a finite gradient."""


@dataclass(frozen=True)
class Settings:
    """Settings that do not belong to one phase."""

    seed: Annotated[int, SEED] = 0
    """Seed of all random numbers."""
    init_from: str = ""
    """Encoder to start from instead of random weights: a run, a Hugging Face HuBERT folder, a file of weights, or the
    name of a shipped encoder."""
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


MOST_DECAYS = 100  # of the target encoder in a phase

PAPERS_PHASES = (
    PhaseConfig(),
    PhaseConfig(targets="online-gmm", k=500, lr=2.5e-5, visible_loss_until=0.5, augment_until=0.5),
)


@dataclass(frozen=True)
class Config(Settings):
    """The settings of a pre-training run.

    The defaults are the paper's, with warm-up and intervals as shares of a phase. The preset `paper` has them in steps.
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
        if self.mfcc.cepstra > self.mfcc.mels:
            raise UserError(
                f"mfcc.cepstra = {self.mfcc.cepstra}: there are only {self.mfcc.mels} mel filters (mfcc.mels)"
            )
        if self.mask.lowest is not None and self.mask.lowest > self.mask.ratio:
            raise UserError(f"mask.lowest = {self.mask.lowest}: it should lie between 0 and mask.ratio")
        if self.layer.choice is not None and not 0 <= self.layer.choice < self.encoder.layers:
            raise UserError(
                f"layer.choice = {self.layer.choice}: the encoder has layers 0 to {self.encoder.layers - 1}"
            )

    def schedule(self) -> list[Phase]:
        """Return the phases with their places in the run."""
        placed: list[Phase] = []
        for number, phase in enumerate(self.phases, 1):
            start, rate = (placed[-1].end, placed[-1].lr(placed[-1].end - 1)) if placed else (0, 0.0)
            placed.append(Phase(number, start, phase, self.ema, rate))
        return placed

    def fitted_phase(self, number: int) -> int:
        """Return the phase that fits the targets of a phase: itself, or an earlier one if they are `same`."""
        while self.phases[number - 1].targets == "same":
            number -= 1
        return number

    @property
    def longest_frames(self) -> int:
        """Frames of the longest piece of audio that the run can predict: the predictor has so many positions."""
        return min(round(self.batches.max_seconds * FRAMES_PER_SECOND), self.predictor.positions)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return sum(phase.steps for phase in self.phases)

    def audio_seconds(self, step: int = 0) -> float:
        """Seconds of audio that the run processes at most from a step on, including repetitions.

        A batch has less than `batches.seconds` if these are no multiple of its crop length.
        """
        left = [(phase, phase.end - max(phase.start, step)) for phase in self.schedule()]
        return sum(max(0, steps) * self.batches_in(phase.config).seconds for phase, steps in left)

    def batches_in(self, phase: PhaseConfig) -> BatchConfig:
        """Return the batch settings of a phase: those of the run, unless the phase has its own size or lengths."""
        return dataclasses.replace(
            self.batches,
            seconds=phase.batch_seconds or self.batches.seconds,
            buckets=phase.buckets or self.batches.buckets,
        )


def check_phases(config: Config) -> None:
    """Raise UserError if phases cannot follow each other, or if their batches do not fit the model."""
    if not config.phases:
        raise UserError("there are no phases: a run needs at least phase1")
    check_first_targets(config)
    for number, phase in enumerate(config.phases, 1):
        name = phase_name(number)
        if phase.targets != "same":
            check_features(config, phase, name)
        kind = KINDS[config.phases[config.fitted_phase(number) - 1].targets]
        if phase.refit_every and not (kind.online and kind.reads_encoder):
            raise UserError(f"{name}.refit_every: only online-gmm targets can be fitted again; set it to 0")
        if kind.online and config.ema.schedule != "switched":
            check_decays(phase, name)
        batches = config.batches_in(phase)
        if not batches.buckets:
            raise UserError("batches.buckets: give at least one length in seconds, all above 0")
        if max(batches.buckets) > batches.max_seconds:
            raise UserError("batches.buckets: the longest bucket is longer than batches.max_seconds")
        longest = round(max(batches.buckets) * FRAMES_PER_SECOND)
        if longest > config.predictor.positions:
            raise UserError(
                f"predictor.positions = {config.predictor.positions}: the longest bucket has {longest} frames"
            )


def check_decays(phase: PhaseConfig, name: str) -> None:
    """Raise UserError if the decay of the target encoder changes too often. Each decay needs CUDA graphs of its own."""
    every = max(1, Phase(1, 0, phase).steps(phase.ema_switch_every))
    if phase.steps > MOST_DECAYS * every:
        least = -(-phase.steps // MOST_DECAYS)
        raise UserError(
            f"{name}.ema_switch_every = {phase.ema_switch_every}: the decay of the target encoder may change at most "
            f"{MOST_DECAYS} times per phase, so give at least {least} steps"
        )


def check_features(config: Config, phase: PhaseConfig, name: str) -> None:
    """Raise UserError if a phase cannot make its targets from their features."""
    kind = KINDS[phase.targets]
    if phase.centred and not kind.can_centre:
        raise UserError(f"{name}.centred: {phase.targets} standardises its features, so they cannot be centred")
    available = kind.count_dimensions(config.encoder.hidden_size, config.mfcc)
    if phase.dimensions > available:
        raise UserError(f"{name}.dimensions = {phase.dimensions}: the features have only {available}")
    if phase.directions == "discriminant" and not 0 < phase.dimensions < phase.k:
        raise UserError(
            f"{name}.directions = 'discriminant': set {name}.dimensions to a number from 1 to {phase.k - 1}"
        )


def check_first_targets(config: Config) -> None:
    """Raise UserError if phase 1 takes its targets from an encoder or a layer that is not known before it."""
    targets = config.phases[0].targets
    if targets != "same" and not KINDS[targets].reads_encoder:
        return
    if targets == "same" or not config.init_from:
        hint = "" if targets == "same" else "; give one with init_from"
        raise UserError(f"phase1.targets = {targets!r}: phase 1 has no trained encoder to take targets from{hint}")
    if config.layer.choice is None:
        last = config.encoder.layers - 1
        raise UserError(
            f"phase1.targets = {targets!r}: no effective rank is measured before phase 1; set layer.choice to a layer, "
            f"0 to {last}, for example with --layer.choice {max(0, last - 1)}"
        )


def check_augmentation(config: Config) -> None:
    """Raise UserError if a new run asks for a speed change or an equalizer, but no phase augments its audio."""
    changed = [name for name in ("speed", "equalizer") if getattr(config.augment, name)]
    if changed and not any(phase.augment_until for phase in config.phases):
        phases = " and ".join(f"{phase_name(number)}.augment_until" for number in range(1, len(config.phases) + 1))
        raise UserError(f"augment.{changed[0]}: no phase augments its audio; raise {phases}, for example to 1.0")


# Fields that a continued run may change for one start. They determine how a run is computed and kept, not what it
# learns from. (With augmentation, `accumulate` also changes which utterances of a batch are mixed.)
FREE = frozenset(
    {
        "train.device",
        "train.compile",
        "train.checkpoint_every",
        "train.checkpoint_minutes",
        "train.keep_checkpoints",
        "train.keep_every",
        "train.bad_steps",
        "batches.bad_share",
        "batches.cache",
        "batches.workers",
        "batches.shard_cache",
        "batches.shard_cache_gb",
        "train.accumulate",
        "train.recompute",
        "train.held_out",
        "train.wandb",
        "batches.memory_gb",
    }
)


def sections(config: Config) -> dict[str, Any]:
    """Return the dataclasses of a config by section name. The name of the top level is empty."""
    found: dict[str, Any] = {"": config}
    for f in dataclasses.fields(Settings):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            found[f.name] = value
    return found | {phase_name(number): phase for number, phase in enumerate(config.phases, 1)}


def tables(config: Config) -> dict[str, Any]:
    """Return all values as in a TOML file: those outside sections by field name, then a table for each section."""
    found = {
        name: {
            f.name: getattr(section, f.name)
            for f in dataclasses.fields(section)
            if f.name != "phases" and not dataclasses.is_dataclass(getattr(section, f.name))
        }
        for name, section in sections(config).items()
    }
    return found.pop("") | found


def flatten(config: Config) -> dict[str, Any]:
    """Return all values by dotted field name, such as `phase2.steps`."""
    return flatten_tables(tables(config))


class Difference(NamedTuple):
    """A field in which two configs differ."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} was {self.old}, now {self.new}"


def all_differences(old: Config, new: Config) -> list[Difference]:
    """Return the fields in which two configs differ. The value is None if a config does not have the phase."""
    a, b = flatten(old), flatten(new)
    names = dict.fromkeys([*a, *b])
    return [Difference(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def differences(old: Config, new: Config) -> list[Difference]:
    """Return the differences that change the result: all except those in FREE fields."""
    return [difference for difference in all_differences(old, new) if difference.name not in FREE]
