"""Start small runs as a user or a test does, and read their logs."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sjepa.config import Config
from sjepa.data.loader import Batch, BatchReader
from sjepa.data.sampler import BatchPlan
from sjepa.settings_file import to_toml
from sjepa.train.run import Run

Make = Callable[..., Config]


def lines(run: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The metrics, without what depends on the clock."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = {"speed", "rank_speed"}
    return [{k: v for k, v in e.items() if k not in clock} for e in events if event in (None, e["event"])]


def arguments(config: Config, corpus: Path, out: Path, folder: Path) -> list[str]:
    """A command that trains."""
    preset = folder / "config.toml"
    preset.write_text(to_toml(config))
    return ["pretrain", "--preset", str(preset), "--data", str(corpus), "--out", str(out)]


def command(config: Config, corpus: Path, out: Path, folder: Path, world_size: int = 1) -> list[str]:
    """The same as a user starts it, with torchrun for several ranks."""
    launch = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(world_size),
        "--master-port",
        str(20_000 + os.getpid() % 20_000),
    ]
    start = [sys.executable, *(launch if world_size > 1 else []), "-m", "sjepa"]
    return [*start, *arguments(config, corpus, out, folder)]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def one_batch(config: Config, corpus: Path, phase: int = 1) -> tuple[Run, Batch]:
    """A run with the fitted targets of a phase, and its first batch."""
    from sjepa.data.opening import open_corpus

    loaded = open_corpus(corpus, config.batches.max_seconds, "memory", 1.0)
    plan = BatchPlan(loaded.length, seconds=config.batches.seconds, buckets=config.batches.buckets, seed=0)
    reader = BatchReader(loaded, config.mask, config.augment, seed=0, accumulate=config.train.accumulate)
    batch = reader[plan.epoch(0)[0]]
    run = Run.start(config, torch.device("cpu"))
    targets = run.make_targets(config.schedule()[phase - 1])
    targets.fit(targets.frames_to_fit(batch.waveforms.float() / 32768, run.layer.active).flatten(0, 1))
    run.install(targets, phase)
    return run, batch
