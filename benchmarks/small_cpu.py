"""Size and CPU latency of an encoder in torch, in ONNX, and in ONNX with 8-bit weights.

    python benchmarks/small_cpu.py --rounds 3 --out benchmarks/results/small-cpu.json

Calls alternate in one process with one thread, and CPU time is measured, so other load has little effect. Weights are
random. `--run RUN --data LABELLED` instead measures the effect of 8 bits on a phone probe.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from sjepa.audio.io import SAMPLE_RATE, read_audio
from sjepa.evaluate.probes import choose_utterances, frame_labels, phone_probe
from sjepa.export.graphs import ONNX_FILE, write_onnx
from sjepa.export.int8 import write_int8
from sjepa.runs.encoder import Encoder
from sjepa.settings_file import load_preset


def make_session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def make_forms(encoder: Encoder, folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Return functions from a waveform to the last hidden state, and their sizes in MB."""
    sizes = {"torch fp32": sum(p.numel() for p in encoder.parameters()) * 4 / 1e6}
    sessions = {}
    for name, write in {"ONNX fp32": [write_onnx], "ONNX int8": [write_onnx, write_int8]}.items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        for step in write:
            step(encoder, place)
        sizes[name] = (place / ONNX_FILE).stat().st_size / 1e6
        sessions[name] = make_session(place / ONNX_FILE)

    def by_torch(samples: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return encoder(torch.from_numpy(samples)[None]).last[0].numpy()

    functions: dict[str, Any] = {"torch fp32": by_torch}
    for name, each in sessions.items():
        functions[name] = lambda samples, each=each: each.run(None, {"waveforms": samples[None]})[-1][0]
    return functions, sizes


def measure_latency(functions: dict[str, Any], seconds: float, rounds: int) -> dict[str, float]:
    samples = (0.1 * np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE))).astype(np.float32)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            began = time.process_time()
            function(samples)
            taken[name] += [time.process_time() - began] if turn else []
    return {name: statistics.median(times) for name, times in taken.items()}


def probe_phones(functions: dict[str, Any], data: Path, frames: int) -> dict[str, dict[str, float]]:
    """Return linear phone accuracy on held-out speakers."""
    labels = [json.loads(line) for line in (data / "labels.jsonl").read_text("utf-8").splitlines()]
    lengths = [int(label["duration"] * 50) - 1 for label in labels]
    chosen = choose_utterances(lengths, frames, seed=0)
    scores = {}
    for name, function in functions.items():
        features = [function(read_audio(data / labels[i]["path"])) for i in chosen]
        phones = [np.array(frame_labels(labels[i]["phones"], len(f))) for i, f in zip(chosen, features, strict=True)]
        owners = np.repeat([labels[i]["speaker"] for i in chosen], [len(f) for f in features])
        found = phone_probe(torch.from_numpy(np.concatenate(features)), np.concatenate(phones), owners, splits=2)
        scores[name] = {"mean": found.mean, "deviation": found.deviation}
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--frames", type=int, default=15_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = (
        Encoder.from_pretrained(arguments.run) if arguments.run else Encoder(load_preset(arguments.preset).encoder)
    )
    results: dict[str, Any] = {"machine": platform.machine(), "torch": torch.__version__, "threads": 1}
    with tempfile.TemporaryDirectory() as name:
        functions, results["megabytes"] = make_forms(encoder.eval(), Path(name))
        if arguments.run:
            results["phones"] = probe_phones(functions, arguments.data, arguments.frames)
        else:
            results["seconds"] = arguments.seconds
            results["cpu_seconds"] = measure_latency(functions, arguments.seconds, arguments.rounds)
    print(json.dumps(results, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
