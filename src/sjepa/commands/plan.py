"""`sjepa plan`: estimate what a run would take."""

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
    """Estimate steps, epochs, days, storage, shards and network rate of a run, and the bottleneck.

    `sjepa plan --hours 83000 --gpus 8 --throughput step.json` reads the rate of a GPU from a benchmark's JSON file.
    """

    hours: Annotated[float, AMOUNT]
    """Hours of audio in the corpus."""
    gpus: Annotated[int, AMOUNT] = 8
    """Number of GPUs, 8 per node."""
    throughput: str = "8600"
    """Seconds of audio per second that one GPU trains on: a number, or the JSON file of `sjepa bench step`. The default
    is an H200 in phase 2 at the paper's batch size; small batches are slower."""
    preset: str = "paper"
    """Steps, batch size and model: tiny, half-hour, paper, base, or a TOML file."""
    cores: Annotated[int, AMOUNT] = 16
    """CPU cores per node for decoding."""
    decode: str = "3000"
    """Seconds of FLAC per second that one core decodes: a number, or the JSON file of `sjepa bench data`."""
    network: Annotated[float, AMOUNT] = 25.0
    """Rate at which a node reads shards, in Gb/s."""
    shard_hours: Annotated[float, SHARD_HOURS] = 8.0
    """Hours of audio per shard."""


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
