"""`sjepa plan`: estimate what a run would take."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sjepa.bounds import AMOUNT, SHARD_HOURS
from sjepa.errors import UserError
from sjepa.fields import TABLE, Kind, require
from sjepa.files import read_json
from sjepa.model.encoder_config import EncoderConfig
from sjepa.subcommands import parse
from sjepa.train.estimate import (
    H200,
    LARGEST_ON_CPU,
    Machine,
    PhaseWork,
    StepTime,
    Work,
    describe_plan,
    useful_gpus,
    view_cost,
)

if TYPE_CHECKING:
    from sjepa.config import Config

ANY_SIZE = 360.0  # seconds of audio per step that stand for "any size" if only one rate is given
MEASURED = Kind("a number above 0", lambda value: type(value) in (int, float) and AMOUNT.accepts(value))


@dataclass(frozen=True)
class Plan:
    """Estimate steps, days, storage, network rate and bottleneck of a run, and when more GPUs hardly help.

    `sjepa plan --hours 83000 --gpus 64 --throughput step-45.json step-360.json` reads the rates of a GPU from files of
    `sjepa bench step`, by the seconds of audio per GPU and step.
    """

    hours: Annotated[float, AMOUNT]
    """Hours of audio in the corpus."""
    gpus: Annotated[int | None, AMOUNT] = None
    """Number of GPUs, 8 per node. The default is 8, or fewer if 8 are hardly faster, and 1 for an encoder that a CPU
    can train."""
    throughput: tuple[str, ...] = ()
    """Seconds of audio per second that one GPU trains on: one number for steps of any size, or JSON files of
    `sjepa bench step` for steps of several sizes. The default was measured on an H200."""
    preset: str = "paper"
    """Steps, batch size and model: tiny, compact, half-hour, base, paper, or a TOML file."""
    cores: Annotated[int, AMOUNT] = 16
    """CPU cores per node for decoding."""
    decode: str = "3000"
    """Seconds of FLAC per second that one core decodes: a number, or the JSON file of `sjepa bench data`."""
    network: Annotated[float, AMOUNT] = 25.0
    """Rate at which a node reads shards, in Gb/s."""
    cards: Annotated[int, AMOUNT] = 1
    """Network cards per node that carry gradients."""
    card_rate: Annotated[float, AMOUNT] = 400.0
    """Rate of one card, in Gb/s."""
    disk: Annotated[float, AMOUNT] = 0.5
    """Rate at which checkpoints are written, in GB/s."""
    shard_hours: Annotated[float, SHARD_HOURS] = 8.0
    """Hours of audio per shard."""


def run(arguments: list[str]) -> None:
    command = parse(Plan, "sjepa plan", arguments)
    from sjepa.settings_file import load_preset

    config = load_preset(command.preset)
    if command.throughput:
        times = read_times(command.throughput, config.mask.views)
    else:
        times = scale_times(H200, config.encoder)
    decode_rate = read_rate(command.decode, "--decode", ("decode", "flac", "audio_per_second"))
    work = planned_work(config, command.hours)
    most = work.utterances_per_batch
    gpus = command.gpus or 1
    if gpus > most:
        raise UserError(f"--gpus {gpus}: a batch has {most} utterances, so at most {most} GPUs can share it")
    machine = Machine(
        gpus,
        times,
        command.cores,
        decode_rate,
        command.network,
        command.cards,
        command.card_rate,
        command.disk,
        "" if command.throughput else name_source(command.preset),
    )
    if command.gpus is None and config.encoder.hidden_size > LARGEST_ON_CPU:
        machine = replace(machine, gpus=min(8, useful_gpus(work, machine)[0]))
    print("\n".join(describe_plan(work, machine, command.shard_hours)))


def name_source(preset: str) -> str:
    """Say where the default rates come from, and how to plan with those of this computer."""
    return (
        f"of an H200. For this computer, with or without a GPU: `sjepa bench step --preset {preset} --out FILE`, "
        "then --throughput FILE"
    )


def planned_work(config: "Config", hours: float) -> Work:
    """Count the work of a run on the model itself. Gradients are reduced in fp32."""
    import torch

    from sjepa.model.sjepa import SJEPA
    from sjepa.targets.gmm import Statistics
    from sjepa.targets.kinds import KINDS
    from sjepa.train.optimizer import transformer_matrices

    components = config.phases[-1].k
    with torch.device("meta"):
        model = SJEPA(config.encoder, config.predictor, components, config.train.visible_path)
    parameters, encoder = (sum(p.numel() for p in part.parameters()) for part in (model, model.encoder))
    matrices = sum(p.numel() for p in transformer_matrices(model)) if config.train.optimizer == "muon" else 0
    statistics = Statistics.size(components, config.phases[-1].dimensions or config.encoder.hidden_size)
    phases, reads_encoder = [], False
    for phase in config.phases:
        if phase.targets != "same":
            reads_encoder = KINDS[phase.targets].reads_encoder
        phases.append(PhaseWork(phase.steps, config.batches_in(phase).seconds, reads_encoder, config.mask.views))
    batches = [config.batches_in(phase) for phase in config.phases]
    return Work(
        hours,
        tuple(phases),
        4 * parameters,
        4 * statistics,
        4 * (3 * parameters - matrices + encoder),  # weights, two moments (Muon: one), the target encoder
        config.train.checkpoint_every,
        min(batch.utterances for batch in batches),
    )


def read_times(given: Sequence[str], views: int = 1) -> list[StepTime]:
    """Read rates by the audio per step: one number, or files of `sjepa bench step`.

    A number is the rate with as many masks per utterance as planned; a file says with how many it was measured.
    """
    found = []
    for each in given:
        rate = read_rate(each, "--throughput", ("audio_per_second",))
        facts = read_json(Path(each)) if Path(each).is_file() else {}
        audio, phases = ANY_SIZE, []
        masks = require({"views": 1} | facts, "views", MEASURED, each) if facts else views
        if {"batch", "seconds"} <= set(facts):
            audio = float(math.prod(require(facts, name, MEASURED, each) for name in ("batch", "seconds")))
        for name in ("phase1", "phase2"):
            measured = require(facts, name, TABLE, each) if name in facts else {"audio_per_second": rate}
            phases.append(require(measured, "audio_per_second", MEASURED, f"{each}: {name}") * view_cost(masks))
        found.append(StepTime(audio, *phases))
    if len({time.audio for time in found}) < len(found):
        raise UserError(f"--throughput {' '.join(given)}: give one rate for each size of a step")
    return found


def scale_times(times: Sequence[StepTime], encoder: EncoderConfig) -> list[StepTime]:
    """Scale rates measured with the paper's encoder to a larger one, by the number of operations."""
    from sjepa.audio.io import SAMPLE_RATE
    from sjepa.speed.timing import count_operations

    needed, measured = (count_operations(each, 15 * SAMPLE_RATE) for each in (encoder, EncoderConfig()))
    slower = max(1.0, needed / measured)
    return [replace(time, rate=time.rate / slower, encoder_rate=time.encoder_rate / slower) for time in times]


def read_rate(given: str, option: str, keys: tuple[str, ...]) -> float:
    """Return a rate that is given as a number, or as a JSON file with these nested keys."""
    path = Path(given)
    try:
        value: Any = json.loads(path.read_text()) if path.is_file() else float(given)
        for key in keys if path.is_file() else ():
            value = value[key]
        rate = float(value)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{option} {given}: neither a number nor a JSON file that has {'.'.join(keys)}") from None
    if not AMOUNT.accepts(rate):
        raise UserError(f"{option} {given}: must be above 0")
    return rate
