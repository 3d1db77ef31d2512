"""`sjepa bench data`: measure the speed of audio decoding and of the data loader."""

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
from sjepa.counts import format_count
from sjepa.data.build import build_index
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.index import import_ipc
from sjepa.data.loader import BatchConfig, BatchReader, load, plan_batches
from sjepa.data.masking import MaskConfig
from sjepa.data.opening import open_corpus
from sjepa.data.shards import Encoding, write_shards
from sjepa.errors import UserError
from sjepa.progress import hide_bars
from sjepa.speed.output import announce, processor_name, save
from sjepa.subcommands import parse

FORMATS = {
    "wav": {"subtype": "PCM_16"},
    "flac": {"subtype": "PCM_16"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {},
}


@dataclass(frozen=True)
class BenchData:
    """Measure how fast one core decodes each audio format, and how fast the loader makes batches."""

    data: str = ""
    """Folder, index or shards to read. By default, synthetic audio."""
    seconds: Annotated[float, LENGTH] = 10.0
    """Duration of each loader measurement."""
    workers: Annotated[int, PROCESSES] = os.cpu_count() or 1
    """Worker processes of the loader."""
    out: Path | None = None
    """JSON file for the results."""


def run(arguments: list[str]) -> None:
    command = parse(BenchData, "sjepa bench data", arguments)
    results = measure(command.data, command.seconds, command.workers)
    print(format_table(results))
    save(results, command.out)


def measure(data: str, seconds: float, workers: int) -> dict[str, Any]:
    import_ipc()  # report a missing pyarrow before the work starts
    given = open_corpus(data, 15.0, "none", 0.0) if data else None
    recordings = sample_recordings(given) if given is not None else [synthesize(seed) for seed in range(24)]
    results: dict[str, Any] = {"machine": {"processor": processor_name(), "cores": os.cpu_count(), "workers": workers}}
    name = os.path.basename(data.rstrip("/"))
    results["sound"] = f"{format_count(len(recordings), 'recording')} of {name or 'speech-like sound'}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        announce(f"Timing the decoding of {', '.join(FORMATS)}")
        results["decode"] = {ending: measure_decoding(folder / ending, ending, recordings) for ending in FORMATS}
        results["loader"] = {}
        if given is not None:
            announce(f"Timing the loader on {data}")
            results["loader"]["as given"] = measure_loader(given, workers, seconds)
        index = folder / "index"
        with hide_bars():
            build_index([str(folder / "flac")], index, layout="folder", max_seconds=15.0, cut_transcribed=False)
        encodings: tuple[Encoding, ...] = ("flac", "int16")
        for encoding in encodings:
            announce(f"Writing {encoding} shards and timing the loader on them")
            shards = folder / f"shards-{encoding}"
            with hide_bars():
                write_shards(str(index), shards, encoding=encoding, shard_hours=8.0, seed=0, workers=1)
            corpus = open_corpus(str(shards), 15.0, "none", 0.0)
            results["loader"][f"{encoding} shards"] = measure_loader(corpus, workers, seconds)
    return results


def sample_recordings(corpus: Corpus | CorpusMix) -> list[np.ndarray]:
    """Select up to 64 utterances of at least one second, always the same."""
    chosen = np.random.default_rng(0).choice(len(corpus), min(len(corpus), 64), replace=False)
    long_enough = [int(utterance) for utterance in chosen if corpus.length[utterance] >= SAMPLE_RATE]
    if not long_enough:
        raise UserError("the corpus has no utterances of at least one second")
    return [corpus.read(utterance) for utterance in long_enough]


def synthesize(seed: int) -> np.ndarray:
    """Make 15 s of speech-like audio: harmonics that change every 120 ms, pauses, and a little noise."""
    generator = np.random.default_rng(seed)
    t = np.arange(1920) / SAMPLE_RATE
    pitch = generator.uniform(90, 220)
    harmonics = np.sin(2 * np.pi * pitch * np.arange(1, 20)[:, None] * t)
    loud = generator.choice([0.0, 0.03, 0.08], size=(125, 1))
    tones = (generator.normal(size=(125, 19)) / np.arange(1, 20)) @ harmonics * loud
    return to_int16((tones + 0.002 * generator.normal(size=tones.shape)).ravel())


def measure_decoding(folder: Path, ending: str, recordings: list[np.ndarray]) -> dict[str, float]:
    """Return the seconds of audio that one core decodes per second, and the bytes per second of audio."""
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


def measure_loader(corpus: Corpus | CorpusMix, workers: int, seconds: float) -> dict[str, Any]:
    """Measure the loader in seconds of audio per second, with cropping and masking, on a GPU if there is one."""
    import torch

    # 360 s is one GPU's share of the paper's batch. A small corpus still needs several batches.
    batch_seconds = min(360.0, corpus.hours * 3600 / 8)
    plan = plan_batches(corpus, BatchConfig(seconds=batch_seconds), seed=0, world_size=1)
    reader = BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=0, rank=0, world_size=1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = load(reader, plan, (0, 0), workers, device)
    for _ in range(2 * workers):  # wait for worker start and caches
        next(batches)
    began, audio_seconds = time.perf_counter(), 0.0
    while time.perf_counter() - began < seconds:
        audio_seconds += next(batches).waveforms.numel() / SAMPLE_RATE
    rate = audio_seconds / (time.perf_counter() - began)
    batches.close()
    return {"audio_per_second": rate, "workers": workers, "batch_seconds": batch_seconds, "device": device.type}


def format_table(results: dict[str, Any]) -> str:
    lines = [f"{results['machine']['processor']}, {results['machine']['cores']} cores; {results['sound']}", ""]
    lines += [f"{'decoding, one core':<24}{'audio s/s':>12}{'kB per s of audio':>20}"]
    for name, row in results["decode"].items():
        lines.append(f"{name:<24}{row['audio_per_second']:>12,.0f}{row['bytes_per_second'] / 1e3:>20.1f}")
    lines += ["", f"{'loader':<24}{'audio s/s':>12}{'workers':>20}"]
    for name, row in results["loader"].items():
        lines.append(f"{name:<24}{row['audio_per_second']:>12,.0f}{row['workers']:>20}")
    return "\n".join(lines)
