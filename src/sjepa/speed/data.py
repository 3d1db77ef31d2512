"""`sjepa bench data`: how fast this machine decodes audio, and how fast the loader makes batches of it."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from sjepa.audio.augment import AugmentConfig
from sjepa.audio.io import SAMPLE_RATE, read_int16, to_int16
from sjepa.bounds import LENGTH, PROCESSES
from sjepa.data.build import build_index
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.index import arrow
from sjepa.data.loader import BatchConfig, BatchReader, load, plan_batches
from sjepa.data.masking import MaskConfig
from sjepa.data.opening import open_corpus
from sjepa.data.shards import Encoding, write_shards
from sjepa.errors import UserError
from sjepa.speed.output import processor, save, stage
from sjepa.subcommands import parse

FORMATS = {
    "wav": {"subtype": "PCM_16"},
    "flac": {"subtype": "PCM_16"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {},
}


@dataclass(frozen=True)
class BenchData:
    """Measure reading: decode rate per core by format, and the rate at which the loader makes batches."""

    data: str = ""
    """Folder, index or shards to measure with; empty: made-up speech-like sound."""
    seconds: Annotated[float, LENGTH] = 10.0
    """How long each loader is measured."""
    workers: Annotated[int, PROCESSES] = os.cpu_count() or 1
    """Worker processes of the loader."""
    out: Path | None = None
    """JSON file for the figures."""


def run(arguments: list[str]) -> None:
    command = parse(BenchData, "sjepa bench data", arguments)
    results = measure(command.data, command.seconds, command.workers)
    print(table(results))
    save(results, command.out)


def measure(data: str, seconds: float, workers: int) -> dict[str, Any]:
    arrow()  # missing, it is better missed before the work than after
    given = open_corpus(data, 15.0, "none", 0.0) if data else None
    recordings = sample(given) if given is not None else [babble(seed) for seed in range(24)]
    results: dict[str, Any] = {"machine": {"processor": processor(), "cores": os.cpu_count(), "workers": workers}}
    name = os.path.basename(data.rstrip("/"))
    results["sound"] = f"{len(recordings)} recordings of {name or 'speech-like sound'}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stage(f"Timing the decoding of {', '.join(FORMATS)}")
        results["decode"] = {ending: decode_rate(folder / ending, ending, recordings) for ending in FORMATS}
        results["loader"] = {}
        if given is not None:
            stage(f"Timing the loader on {data}")
            results["loader"]["as given"] = loader_rate(given, workers, seconds)
        build_index(
            [str(folder / "flac")],
            folder / "index",
            layout="folder",
            max_seconds=15.0,
            cut_transcribed=False,
            show=False,
        )
        encodings: tuple[Encoding, ...] = ("flac", "int16")
        for encoding in encodings:
            stage(f"Writing {encoding} shards and timing the loader on them")
            shards = folder / f"shards-{encoding}"
            write_shards(
                str(folder / "index"), shards, encoding=encoding, shard_hours=8.0, seed=0, workers=1, show=False
            )
            corpus = open_corpus(str(shards), 15.0, "none", 0.0)
            results["loader"][f"{encoding} shards"] = loader_rate(corpus, workers, seconds)
    return results


def sample(corpus: Corpus | CorpusMix) -> list[np.ndarray]:
    """Some utterances of a corpus, the same each time."""
    chosen = np.random.default_rng(0).choice(len(corpus), min(len(corpus), 64), replace=False)
    long_enough = [int(utterance) for utterance in chosen if corpus.length[utterance] >= SAMPLE_RATE]
    if not long_enough:
        raise UserError("the corpus has no utterances of a second or more to measure with")
    return [corpus.read(utterance) for utterance in long_enough]


def babble(seed: int) -> np.ndarray:
    """15 s with the texture of speech: harmonics that change every 120 ms, pauses, and a little noise."""
    generator = np.random.default_rng(seed)
    t = np.arange(1920) / SAMPLE_RATE
    pitch = generator.uniform(90, 220)
    harmonics = np.sin(2 * np.pi * pitch * np.arange(1, 20)[:, None] * t)
    loud = generator.choice([0.0, 0.03, 0.08], size=(125, 1))
    tones = (generator.normal(size=(125, 19)) / np.arange(1, 20)) @ harmonics * loud
    return to_int16((tones + 0.002 * generator.normal(size=tones.shape)).ravel())


def decode_rate(folder: Path, ending: str, recordings: list[np.ndarray]) -> dict[str, float]:
    """Seconds of audio decoded in a second by one core, and bytes of a second of audio."""
    import soundfile

    folder.mkdir()
    paths = [folder / f"{number}.{ending}" for number in range(len(recordings))]
    for path, samples in zip(paths, recordings, strict=True):
        soundfile.write(path, samples, SAMPLE_RATE, **FORMATS[ending])
    audio = sum(map(len, recordings)) / SAMPLE_RATE
    began, decoded = time.perf_counter(), 0.0
    while time.perf_counter() - began < 1.0:
        for path in paths:
            read_int16(path)
        decoded += audio
    rate = decoded / (time.perf_counter() - began)
    return {"audio_per_second": rate, "bytes_per_second": sum(path.stat().st_size for path in paths) / audio}


def loader_rate(corpus: Corpus | CorpusMix, workers: int, seconds: float) -> dict[str, Any]:
    """Seconds of audio a second: decoded, cropped, masked, in batches of a GPU's share, on the GPU if there is one."""
    import torch

    # 360 s: a GPU's share of the paper's batch; a small corpus must still give several batches.
    batch_seconds = min(360.0, corpus.hours * 3600 / 8)
    plan = plan_batches(corpus, BatchConfig(seconds=batch_seconds), seed=0, world_size=1)
    reader = BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=0, rank=0, world_size=1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = load(reader, plan, (0, 0), workers, device)
    for _ in range(2 * workers):  # processes start and caches fill
        next(batches)
    began, audio_seconds = time.perf_counter(), 0.0
    while time.perf_counter() - began < seconds:
        audio_seconds += next(batches).waveforms.numel() / SAMPLE_RATE
    rate = audio_seconds / (time.perf_counter() - began)
    batches.close()
    return {"audio_per_second": rate, "workers": workers, "batch_seconds": batch_seconds, "device": device.type}


def table(results: dict[str, Any]) -> str:
    lines = [f"{results['machine']['processor']}, {results['machine']['cores']} cores; {results['sound']}", ""]
    lines += [f"{'decoding, one core':<24}{'audio s/s':>12}{'kB per s of audio':>20}"]
    for name, row in results["decode"].items():
        lines.append(f"{name:<24}{row['audio_per_second']:>12,.0f}{row['bytes_per_second'] / 1e3:>20.1f}")
    lines += ["", f"{'loader':<24}{'audio s/s':>12}{'workers':>20}"]
    for name, row in results["loader"].items():
        lines.append(f"{name:<24}{row['audio_per_second']:>12,.0f}{row['workers']:>20}")
    return "\n".join(lines)
