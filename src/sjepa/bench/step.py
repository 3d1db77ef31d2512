"""`sjepa bench step`: the training step and its parts, beside other implementations."""

import dataclasses
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from sjepa.audio.augment import augment, draw
from sjepa.bench.peers import PEERS
from sjepa.bench.timing import encoder_operations, matrix_rate, milliseconds
from sjepa.config import Config, load_preset
from sjepa.data.loader import Batch
from sjepa.data.masking import block_mask
from sjepa.files import write_whole
from sjepa.model.frontend import frame_count
from sjepa.train.compute import autocast
from sjepa.train.loop import train_step
from sjepa.train.run import Run

KINDS = 16  # steps whose LayerDrop patterns come round in turn, so that all are captured before the clock starts


@dataclass(frozen=True)
class BenchStep:
    """Time whole training steps and their parts on random audio; on a CPU at a small size."""

    preset: str = ""
    """Model and batch: paper on a GPU and tiny on a CPU where none is named."""
    batch: int = 0
    """Utterances in a batch; 24 on a GPU, 4 on a CPU."""
    seconds: float = 0.0
    """Length of an utterance; 15 on a GPU, 2 on a CPU."""
    repeats: int = 32
    """Timed steps."""
    against: str = ""
    """Peers to time on the same batch in the same process: hf, torchaudio or both, where they are installed."""
    out: Path | None = None
    """JSON file for the figures."""


def run(arguments: list[str]) -> None:
    command = tyro.cli(BenchStep, prog="sjepa bench step", args=arguments)
    results = measure(command)
    print(table(results))
    if command.out:
        command.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(command.out, json.dumps(results, indent=1) + "\n")


def measure(command: BenchStep) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    config = load_preset(command.preset or ("paper" if gpu else "tiny"))
    batch, seconds = command.batch or (24 if gpu else 4), command.seconds or (15.0 if gpu else 2.0)
    batches = [random_batch(config, batch, round(seconds * 16_000), seed, device) for seed in range(4)]
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "CPU",
        "torch": torch.__version__,
        "preset": command.preset or ("paper" if gpu else "tiny"),
        "batch": batch,
        "seconds": seconds,
        "matrix_tflops": matrix_rate(device) / 1e12,
    }
    for number in (1, 2):
        results[f"phase{number}"] = time_phase(config, number, batches, device, command.repeats)
    results["parts_ms"] = time_parts(config, batches[0], device)
    forward_backward = 3 * batch * encoder_operations(config.encoder, round(seconds * 16_000))
    rate = forward_backward / (results["parts_ms"]["encoder"] / 1e3) / 1e12
    results["encoder_tflops"], results["encoder_share"] = rate, rate / results["matrix_tflops"]
    results["audio_per_second"] = results["phase2"]["audio_per_second"]
    results["peers"] = {
        name: PEERS[name](config, batches[0].waveforms.float() / 32768, batches[0].mask, device)
        for name in filter(None, command.against.split(","))
        if name in PEERS
    }
    return results


def random_batch(config: Config, batch: int, samples: int, seed: int, device: torch.device) -> Batch:
    """Noise with an envelope, masked and with augmentation drawn as in training."""
    generators = [np.random.default_rng((seed, place)) for place in range(batch)]
    envelope = np.repeat(np.random.default_rng(seed).uniform(0.1, 1.0, (batch, samples // 1600 + 1)), 1600, axis=1)
    noise = np.stack([g.normal(size=samples) for g in generators]) * envelope[:, :samples] * 3000
    mask = np.stack([block_mask(frame_count(samples), config.mask, g) for g in generators])
    waveforms = torch.from_numpy(noise.astype(np.int16)).to(device)
    hidden, draws = torch.from_numpy(mask).to(device), draw(generators, config.augment)
    return Batch(waveforms, hidden, draws, position=(0, 0), available=noise.size / 16_000, cropped=0.0, bad=[])


def started(config: Config, number: int, audio: Batch, device: torch.device) -> Run:
    """A run at the start of a phase, its mixture fitted to one batch."""
    config = dataclasses.replace(config, gmm=dataclasses.replace(config.gmm, em_iterations=2, kmeans_iterations=1))
    run = Run.start(config, device)
    targets = run.make_targets(config.phases()[number - 1])
    with torch.no_grad(), autocast(config, device):
        frames = targets.frames_to_fit(audio.waveforms.float() / 32768).flatten(0, 1).float()
    targets.fit(frames.repeat(-(-targets.components // len(frames)), 1))
    run.install(targets, number)
    return run


def time_phase(
    config: Config, number: int, batches: list[Batch], device: torch.device, repeats: int
) -> dict[str, float]:
    run = started(config, number, batches[0], device)
    phase = config.phases()[number - 1]
    count = 0

    def step() -> None:
        nonlocal count
        run.step = phase.start + count % KINDS
        train_step(run, phase, batches[count % len(batches)], None)
        count += 1

    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    first = time.perf_counter() - began
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = milliseconds(step, device, repeats, 3 * KINDS if device.type == "cuda" else 2)
    audio = batches[0].waveforms.numel() / 16_000
    memory = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else 0.0
    return {"ms": taken, "audio_per_second": audio / taken * 1e3, "first_step_s": first, "memory_gb": memory}


def time_parts(config: Config, batch: Batch, device: torch.device) -> dict[str, float]:
    """Each part alone, forward and backward where it has both; in a step they overlap, so they do not add up."""
    run = started(config, 2, batch, device)
    model, encoder, mixture = run.model, run.model.encoder, run.targets.codebook
    clean = batch.waveforms.float() / 32768
    frames, hidden = batch.mask.shape[1], config.encoder.hidden_size
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(len(clean), frames, hidden, device=device, dtype=half, requires_grad=True)
    channels = torch.randn(
        len(clean), frames, config.encoder.conv_channels, device=device, dtype=half, requires_grad=True
    )
    features = x.detach().flatten(0, 1).float()
    model.train()

    def both_ways(part: Any) -> float:
        def work() -> None:
            with autocast(config, device):
                y: Tensor = part()
            y.backward(torch.ones_like(y))

        return milliseconds(work, device, 10, 4)

    def stack() -> Tensor:
        y = x
        for layer in encoder.encoder.layers:
            y = layer(y)
        return y

    def mixture_step() -> None:
        powers = mixture.powers(features)
        posterior = torch.softmax(mixture.log_joint(powers), dim=1)
        mixture.update_online(mixture.statistics(powers, posterior), 0.999, 0.01)

    def targets() -> None:
        with autocast(config, device):
            run.targets(clean)

    parts = {
        "augmentation": milliseconds(lambda: augment(clean, batch.draws, None), device, 10, 3),
        "front end": both_ways(lambda: encoder.feature_extractor(clean)),
        "projection": both_ways(lambda: encoder.feature_projection(channels)),
        "position": both_ways(lambda: encoder.encoder.pos_conv_embed(x)),
        "stack": both_ways(stack),
        "encoder": both_ways(lambda: encoder(clean, mask=batch.mask).last),
        "predictor and head": both_ways(lambda: model.predict(x, batch.mask)),
        "targets": milliseconds(targets, device, 10, 3),
        "of which mixture": milliseconds(mixture_step, device, 10, 3),
        "moving average": milliseconds(lambda: run.targets.follow(encoder, 0.999), device, 10, 3),
    }
    return parts | {"optimizer": milliseconds(run.optimizer.step, device, 10, 3)}


def table(results: dict[str, Any]) -> str:
    lines = [f"{results['device']}, torch {results['torch']}, {results['batch']} x {results['seconds']:g} s"]
    for number in (1, 2):
        phase = results[f"phase{number}"]
        lines.append(
            f"  phase {number} step      {phase['ms']:9.2f} ms   {phase['audio_per_second']:9,.0f} audio s/s   "
            f"{phase['memory_gb']:5.1f} GB   first step {phase['first_step_s']:.0f} s"
        )
    lines += [f"  {name:<18} {value:9.2f} ms" for name, value in results["parts_ms"].items()]
    rate, best = results["encoder_tflops"] * 1e3, results["matrix_tflops"] * 1e3
    lines.append(f"  encoder, both ways: {rate:,.0f} GFLOP/s, {rate / best:.0%} of {best:,.0f} in a large product here")
    for name, peer in results["peers"].items():
        figures = peer if isinstance(peer, str) else f"{peer['ms']:.2f} ms, {peer['audio_per_second']:,.0f} audio s/s"
        lines.append(f"  {name}: {figures}")
    return "\n".join(lines)
