"""`sjepa shard`: pack an index into tar shards."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sjepa.bounds import PROCESSES, SEED, SHARD_HOURS
from sjepa.counts import format_count
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Shard:
    """Pack an index into WebDataset tar shards of 16 kHz mono audio, with an index of their own.

    Train on the folder of the shards, or serve it: `sjepa pretrain --data https://host/shards`. Run the same command
    again to continue.
    """

    corpus: Annotated[str, tyro.conf.Positional]
    """The index: a folder that `sjepa index` made, or a URL."""
    out: Path
    """Folder for the shards."""
    encoding: Literal["flac", "int16"] = "flac"
    """flac is about half the size; int16 needs no decoding and reads fastest."""
    shard_hours: Annotated[float, SHARD_HOURS] = 8.0
    """Hours of audio per shard: 8 hours are about 0.5 GB of flac, or 0.9 GB of int16."""
    seed: Annotated[int, SEED] = 0
    """Seed of the order of utterances."""
    workers: Annotated[int, PROCESSES] = os.cpu_count() or 1
    """Processes that decode and encode."""


def run(arguments: list[str]) -> None:
    command = parse(Shard, "sjepa shard", arguments)
    from sjepa.data.index_folder import IndexFolder
    from sjepa.data.shards import write_shards

    facts = write_shards(
        command.corpus,
        command.out,
        encoding=command.encoding,
        shard_hours=command.shard_hours,
        seed=command.seed,
        workers=command.workers,
    )
    size = sum(path.stat().st_size for path in command.out.glob("*.tar"))
    amount = f"{facts['hours']:,.2f} hours, {format_count(facts['utterances'], 'utterance')}"
    print(f"{amount}, {format_count(facts['files'], 'shard')}, {size / 1e9:.2f} GB")
    if facts["refused"]:
        print(f"{facts['refused']:,} left out, listed in {IndexFolder(command.out).refused}")
    print(f"The shards are in {command.out}: sjepa pretrain --data {shlex.quote(str(command.out))}")
