"""How close the frames of a live stream are to those of the whole recording, and how fast they are computed.

    python benchmarks/streaming.py closeness --encoder ENCODER --data AUDIO --out benchmarks/results/streaming.json
    python benchmarks/streaming.py speed --preset paper --out benchmarks/results/streaming-cpu.json

`closeness` compares each frame of the last layer, over whole utterances: the difference relative to the frame's norm,
and the share of frames with the same unit of the cluster head. `speed` uses random weights. It reports the real-time
factor (time over audio), and the processor time, on which other work on the machine has little effect.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sjepa import Encoder, load_preset
from sjepa.audio.io import SAMPLE_RATE, read_audio
from sjepa.model.stream import FeatureStream
from sjepa.model.stream_config import StreamConfig
from sjepa.progress import track

USUAL = StreamConfig()
LOOK_AHEADS = [StreamConfig(look_ahead=seconds) for seconds in (0.0, 0.16, 0.32, 0.64, 1.28, 2.56)]
CONTEXTS = [StreamConfig(context=seconds) for seconds in (1.0, 4.0, 8.0)]
CHUNKS = [StreamConfig(chunk=seconds) for seconds in (0.32, 0.64)]


@torch.inference_mode()
def closeness(encoder: Encoder, data: Path, utterances: int, seconds: float) -> list[dict[str, Any]]:
    """Differences from the whole recording for every setting, over the first long enough utterance of each folder."""
    chosen: dict[Path, np.ndarray] = {}
    for file in sorted(path for path in data.rglob("*") if path.suffix in (".flac", ".opus", ".wav")):
        if len(chosen) == utterances:
            break
        if file.parents[1] not in chosen and len(samples := read_audio(file)) >= seconds * SAMPLE_RATE:
            chosen[file.parents[1]] = samples
    recordings = list(chosen.values())
    last, clusters = encoder.config.layers, encoder.clusters
    whole = [encoder(torch.from_numpy(samples)[None]).hidden_states[last][0] for samples in recordings]
    units = [clusters.head_posteriors(x).argmax(-1) for x in whole]
    rows = []
    for config in track([*LOOK_AHEADS, *CONTEXTS, *CHUNKS], "Settings"):
        differences, same = [], []
        for samples, x, wanted in zip(recordings, whole, units, strict=True):
            found = torch.cat(list(FeatureStream(encoder, config, (last,)).feed([samples])))
            differences.append((found - x).norm(dim=1) / x.norm(dim=1))
            same.append(clusters.head_posteriors(found).argmax(-1) == wanted)
        relative = torch.cat(differences)
        rows.append(
            asdict(config)
            | {
                "latency": config.latency,
                "difference_median": float(relative.median()),
                "difference_95": float(relative.quantile(0.95)),
                "same_unit": float(torch.cat(same).float().mean()),
            }
        )
    audio = sum(map(len, recordings)) / SAMPLE_RATE
    return [row | {"recordings": len(recordings), "seconds": audio} for row in rows]


def speed(encoder: Encoder, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Time per second of audio, once the context is full."""
    samples = (0.1 * np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE))).astype(np.float32)
    rows = []
    for config in track([USUAL, StreamConfig(chunk=0.64), StreamConfig(context=4.0)], "Settings"):
        taken, clock = [], []
        for _ in range(rounds):
            stream = FeatureStream(encoder, config, (encoder.config.layers,))
            stream.push(samples[: round((config.context + config.latency) * SAMPLE_RATE)])
            done, began, started = stream.done, time.process_time(), time.perf_counter()
            stream.push(samples[round((config.context + config.latency) * SAMPLE_RATE) :])
            audio = (stream.done - done) / 50
            taken.append((time.process_time() - began) / audio)
            clock.append((time.perf_counter() - started) / audio)
        rows.append(
            asdict(config)
            | {
                "latency": config.latency,
                "real_time_factor": statistics.median(clock),
                "cpu_seconds_per_second": statistics.median(taken),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["closeness", "speed"])
    parser.add_argument("--encoder")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--utterances", type=int, default=20)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seconds", type=float, default=12.0, help="shortest utterance, or length of the timed stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    about = {"machine": platform.machine(), "torch": torch.__version__, "threads": given.threads}
    if given.what == "closeness":
        if given.encoder is None or given.data is None:
            parser.error("closeness needs --encoder and --data")
        encoder = Encoder.from_pretrained(given.encoder)
        rows = closeness(encoder, given.data, given.utterances, given.seconds)
    else:
        encoder = Encoder(load_preset(given.preset).encoder).eval()
        about["preset"] = given.preset
        rows = speed(encoder, given.seconds, given.rounds)
    about["parameters"] = sum(p.numel() for p in encoder.parameters())
    results = about | {"rows": rows}
    print(json.dumps(results, indent=1))
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


main()
