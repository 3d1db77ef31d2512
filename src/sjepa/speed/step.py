"""`sjepa bench step`: time the training step and its parts, and compare with other implementations."""

import dataclasses
import gc
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.augment import draw
from sjepa.audio.frames import frame_count
from sjepa.audio.io import SAMPLE_RATE
from sjepa.bounds import LENGTH_OR_DEFAULT, SIZE, SIZE_OR_DEFAULT
from sjepa.config import Config
from sjepa.data.loader import Batch, copy_to_device
from sjepa.data.masking import draw_views
from sjepa.errors import UserError
from sjepa.settings_file import load_preset
from sjepa.speed.output import announce, describe_machine, print_table, save
from sjepa.speed.peers import PEERS
from sjepa.speed.timing import capture_graph, count_operations, measure_matmul_rate, time_call
from sjepa.subcommands import parse
from sjepa.targets.targets import Targets
from sjepa.torch_private import count_compiled_graphs, prepare_step
from sjepa.train.compute import autocast
from sjepa.train.run import Run
from sjepa.train.step import train_step

MOST_UTTERANCES = 24  # of the default batch: the share of one of eight GPUs with the preset `paper`
KINDS = 16  # distinct LayerDrop patterns, all captured during the warm-up


@dataclass(frozen=True)
class BenchStep:
    """Time training steps and their parts on random audio. On a CPU, the default size is small."""

    preset: str = ""
    """Model and batch. By default, paper on a GPU and tiny on a CPU."""
    batch: Annotated[int, SIZE_OR_DEFAULT] = 0
    """Utterances per batch. By default, as many as in a batch of the preset and at most 24; on a CPU, 4."""
    seconds: Annotated[float, LENGTH_OR_DEFAULT] = 0.0
    """Length of an utterance. By default, the longest crop of the preset; on a CPU, 2."""
    repeats: Annotated[int, SIZE] = 32
    """Timed steps."""
    against: str = ""
    """Implementations to compare on the same batch: hf, torchaudio, or both separated by a comma."""
    distributed: bool = False
    """Join a process group of size one, to include the all-reduce in the step."""
    out: Path | None = None
    """JSON file for the results."""


def run(arguments: list[str]) -> None:
    command = parse(BenchStep, "sjepa bench step", arguments)
    if command.distributed:
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        os.environ.update({name: os.environ.get(name, value) for name, value in alone.items()})
        distributed.setup("auto")
    results = measure(command)
    print_results(results)
    save(results, command.out)


def parse_peers(against: str) -> list[str]:
    """Return the implementations that --against names. Raise UserError for an unknown one."""
    names = [name.strip() for name in against.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise UserError(f"--against {name}: unknown; choose from {', '.join(PEERS)}")
    return names


def measure(command: BenchStep) -> dict[str, Any]:
    peers = parse_peers(command.against)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    config = load_preset(command.preset or ("paper" if gpu else "tiny"))
    sizes = config.batches
    batch = command.batch or (min(sizes.utterances, MOST_UTTERANCES) if gpu else 4)
    seconds = command.seconds or (max(sizes.buckets) if gpu else 2.0)
    announce("Making batches and timing a large matrix product")
    batches = [random_batch(config, batch, round(seconds * SAMPLE_RATE), seed) for seed in range(4)]
    results: dict[str, Any] = describe_machine(device) | {
        "preset": command.preset or ("paper" if gpu else "tiny"),
        "distributed": command.distributed,
        "batch": batch,
        "seconds": seconds,
        "views": config.mask.views,
        "matrix_tflops": measure_matmul_rate(device) / 1e12,
    }
    for number in (1, 2):
        announce(f"Timing steps of phase {number}")
        results[f"phase{number}"] = time_phase(config, number, batches, device, command.repeats)
    announce("Timing steps of phase 2 without the mixture")
    without = time_phase(config, 2, batches, device, command.repeats, mixture=False)
    results["mixture_adds_ms"] = results["phase2"]["ms"] - without["ms"]
    there = batches[0].to(device) if gpu else batches[0]
    announce("Timing each part separately")
    results["parts_ms"] = time_parts(config, there, device)
    forward_backward = 3 * batch * count_operations(config.encoder, round(seconds * SAMPLE_RATE))
    rate = forward_backward / (results["parts_ms"]["encoder"] / 1e3) / 1e12
    results["encoder_tflops"], results["encoder_share"] = rate, rate / results["matrix_tflops"]
    results["audio_per_second"] = results["phase2"]["audio_per_second"]
    results["peers"] = {}
    for name in peers:
        announce(f"Timing steps of {name}")
        results["peers"][name] = PEERS[name](config, there.clean, there.masks[:, 0], device)
    return results


def random_batch(config: Config, batch: int, samples: int, seed: int) -> Batch:
    """Make a batch of modulated noise, with masks and augmentation as in training."""
    generators = [np.random.default_rng((seed, place)) for place in range(batch)]
    envelope = np.repeat(np.random.default_rng(seed).uniform(0.1, 1.0, (batch, samples // 1600 + 1)), 1600, axis=1)
    noise = np.stack([g.normal(size=samples) for g in generators]) * envelope[:, :samples] * 3000
    masks = np.stack([draw_views(frame_count(samples), config.mask, g) for g in generators])
    waveforms, draws = torch.from_numpy(noise.astype(np.int16)), draw(generators, config.augment)
    return Batch(
        waveforms,
        torch.from_numpy(masks),
        draws,
        position=(0, 0),
        available=noise.size / SAMPLE_RATE,
        cropped=0.0,
        bad=[],
    )


def start_run(config: Config, number: int, audio: Batch, device: torch.device) -> Run:
    """Make a run at the start of a phase, with its mixture fitted to one batch."""
    config = dataclasses.replace(config, gmm=dataclasses.replace(config.gmm, em_iterations=2, kmeans_iterations=1))
    run = Run.start(config, device)
    targets = run.make_targets(config.schedule()[number - 1])
    with torch.no_grad(), autocast(config, device):
        frames = targets.frames_to_fit(audio.clean.to(device), run.layer.active).flatten(0, 1).float()
    targets.fit(frames.repeat(-(-targets.components // len(frames)), 1))
    run.install(targets, number)
    return run


class WithoutMixture:
    """Fixed targets, to time a step without posteriors and the online update."""

    def __init__(self, targets: Targets, features: Tensor):
        self.targets, self.q = targets, targets(features)[0].clone()
        self.statistics = torch.zeros(targets.statistics_size, device=features.device)

    def __call__(self, features: Tensor, aligned: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.q, self.statistics

    def __getattr__(self, name: str) -> Any:
        return getattr(self.targets, name)


def time_phase(
    config: Config, number: int, batches: list[Batch], device: torch.device, repeats: int, mixture: bool = True
) -> dict[str, float]:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    run = start_run(config, number, batches[0], device)
    if not mixture:
        with autocast(config, device):
            features = run.targets.frame_features(batches[0].clean.to(device), run.active_layer)
            run.targets = WithoutMixture(run.targets, features)  # type: ignore[assignment]
        run.update_targets = lambda statistics: None
    phase = config.schedule()[number - 1]
    source = (batch for batch in itertools.cycle(batches))
    feed = copy_to_device(source, device) if device.type == "cuda" else source
    steps = itertools.count()
    waits: list[float] = []  # seconds until the batch of each step was there

    def step() -> None:
        run.step = phase.start + next(steps) % KINDS
        asked = time.perf_counter()
        batch = next(feed)
        waits.append(time.perf_counter() - asked)
        train_step(run, phase, batch, None)

    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(3 * KINDS if device.type == "cuda" else 2):
        step()
    taken = time_call(step, device, repeats, warmup=0)
    memory = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else 0.0
    return {
        "ms": taken,
        "audio_per_second": batches[0].seconds / taken * 1e3,
        "waiting_ms": sum(waits[-repeats:]) / repeats * 1e3,
        "first_step_s": first,
        "memory_gb": memory,
        "graphs_compiled": count_compiled_graphs(),
    }


def time_parts(config: Config, batch: Batch, device: torch.device) -> dict[str, float]:
    """Time each part separately, forward and backward. Parts overlap in a step, so the times do not add up."""
    run = start_run(config, 2, batch, device)
    model, encoder = run.model, run.model.encoder
    clean = batch.clean
    mask = batch.masks[:, 0]
    frames, hidden = mask.shape[1], config.encoder.hidden_size
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(len(clean), frames, hidden, device=device, dtype=half, requires_grad=True)
    channels = torch.randn(
        len(clean), frames, config.encoder.conv_channels, device=device, dtype=half, requires_grad=True
    )
    features = x.detach()
    model.train()

    def time_backward(part: Any) -> float:
        def work() -> None:
            model.zero_grad(set_to_none=True)
            with autocast(config, device):
                y: Tensor = part()
            y.backward(torch.ones_like(y))

        return time_work(work)

    def time_work(work: Callable[[], object]) -> float:
        return time_call(capture_graph(work, device), device, 10, 3)

    def stack() -> Tensor:
        y = x
        for layer in encoder.encoder.layers:
            y = layer(y)
        return y

    def targets() -> None:
        with autocast(config, device):
            run.targets(run.targets.frame_features(clean, run.active_layer))

    parts = {
        "augmentation": time_work(lambda: run.augment(clean, batch.draws, None, False)),
        "front end": time_backward(lambda: encoder.feature_extractor(clean)),
        "projection": time_backward(lambda: encoder.feature_projection(channels)),
        "position": time_backward(lambda: encoder.encoder(x, mask)),
        "stack": time_backward(stack),
        "encoder": time_backward(lambda: encoder(clean, mask=mask).last),
        "predictor and head": time_backward(lambda: model.predict(x, mask)),
        "targets": time_work(targets),
        "of which mixture": time_work(lambda: run.targets(features)),
        "moving average": time_work(lambda: run.targets.follow(encoder, 0.999)),
    }
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in run.optimizers:
        prepare_step(optimizer, torch.ones((), device=run.device), torch.zeros((), device=run.device))

    def step() -> None:
        for optimizer in run.optimizers:
            optimizer.step()

    return parts | {"optimizer": time_work(step)}


def print_results(results: dict[str, Any]) -> None:
    steps = []
    for number in (1, 2):
        phase = results[f"phase{number}"]
        figures = (f"{phase['ms']:,.2f}", f"{phase['audio_per_second']:,.0f}", f"{phase['memory_gb']:.1f}")
        steps.append((f"phase {number}", *figures, f"{phase['first_step_s']:.0f}", f"{phase['waiting_ms']:.2f}"))
    for name, peer in results["peers"].items():
        found = (peer, "") if isinstance(peer, str) else (f"{peer['ms']:,.2f}", f"{peer['audio_per_second']:,.0f}")
        steps.append((name, *found, "", "", ""))
    title = f"{results['device']}, torch {results['torch']}: steps of {results['batch']} x {results['seconds']:g} s"
    print_table(title, ("", "ms", "audio s/s", "GB", "first step, s", "waiting, ms"), steps)
    parts = [(name, f"{value:,.2f}") for name, value in results["parts_ms"].items()]
    print_table("each part separately, forward and backward", ("", "ms"), parts)
    added, step = results["mixture_adds_ms"], results["phase2"]["ms"]
    doubt = " (below the resolution of this measurement)" if added < 0 else ""
    print(f"posteriors and online update add {added:,.2f} ms to a step of phase 2, {added / step:.1%}{doubt}")
    rate, best = results["encoder_tflops"], results["matrix_tflops"]
    print(
        f"encoder, forward and backward: {rate:,.2f} TFLOP/s, {rate / best:.0%} of a large matrix product ({best:,.2f})"
    )
