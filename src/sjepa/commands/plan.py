"""`sjepa plan`: what a run would take."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sjepa.bounds import AMOUNT, SHARD_HOURS
from sjepa.config import Config, load_preset
from sjepa.data.plan import Machine, Work, table
from sjepa.errors import UserError
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Plan:
    """Steps, epochs, days, storage, shards and network rate of a run, and what limits it.

    `sjepa plan --hours 83000 --gpus 8 --throughput step.json` takes the rate of a GPU from a benchmark's file.
    """

    hours: Annotated[float, AMOUNT]
    """Hours of audio in the corpus."""
    gpus: Annotated[int, AMOUNT] = 8
    """GPUs, 8 a node."""
    throughput: str = "8600"
    """Seconds of audio that one GPU trains on in a second: a number (the default: an H200 in phase 2 at the paper's
    batch; small batches are slower), or the JSON of `sjepa bench step`."""
    preset: str = "paper"
    """Where the steps, the batch and the model come from: tiny, half-hour, paper, or a TOML file."""
    cores: Annotated[int, AMOUNT] = 16
    """Cores of a node that decode."""
    decode: str = "3000"
    """Seconds of FLAC that one core decodes in a second: a number, or the JSON of `sjepa bench data`."""
    network: Annotated[float, AMOUNT] = 25.0
    """Gb/s that a node reads shards with."""
    shard_hours: Annotated[float, SHARD_HOURS] = 8.0
    """Audio in a shard."""


def run(arguments: list[str]) -> None:
    command = parse(Plan, "sjepa plan", arguments)
    gpu_rate = rate_of(command.throughput, "--throughput", ("audio_per_second",))
    decode_rate = rate_of(command.decode, "--decode", ("decode", "flac", "audio_per_second"))
    machine = Machine(command.gpus, gpu_rate, command.cores, decode_rate, command.network)
    print("\n".join(table(work_of(load_preset(command.preset), command.hours), machine, command.shard_hours)))


def work_of(config: Config, hours: float) -> Work:
    """Parameters are counted on the model itself; gradients travel in fp32."""
    import torch

    from sjepa.model.sjepa import SJEPA

    components = config.phases[-1].k
    with torch.device("meta"):
        model = SJEPA(config.encoder, config.predictor, components, config.train.visible_path)
    parameters = sum(p.numel() for p in model.parameters())
    statistics = components * (1 + 2 * config.encoder.hidden_size)  # counts, sums and squares of each component
    return Work(hours, config.steps, config.audio_seconds / config.steps, 4 * parameters, 4 * statistics)


def rate_of(given: str, option: str, keys: tuple[str, ...]) -> float:
    """A rate given as a number, or found in a JSON file."""
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
