"""`sjepa bench gmm`: posteriors, online updates and EM, beside the paper's equations as written and scikit-learn."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE
from sjepa.bounds import INDEX, LENGTH, SIZE, SIZE_OR_DEFAULT
from sjepa.errors import UserError
from sjepa.model.frontend import frame_count
from sjepa.speed.contest import figures, in_turn
from sjepa.speed.mixtures import ScikitLearn, draw_frames, naive_posterior, naive_update
from sjepa.speed.output import machine, save, show, stage
from sjepa.subcommands import parse
from sjepa.targets.fit import initial_mixture
from sjepa.targets.gmm import DiagonalGMM
from sjepa.targets.kmeans import kmeans

DECAY, MINIMUM_COUNT = 0.999, 0.01


@dataclass(frozen=True)
class BenchGmm:
    """Time mixtures on frames drawn from a made-up mixture: the online update of phase 2, and the fit of phase 1."""

    batch: Annotated[int, SIZE_OR_DEFAULT] = 0
    """Utterances whose frames the online mixture sees at once; 24 on a GPU, 2 on a CPU."""
    seconds: Annotated[float, LENGTH] = 15.0
    """Length of an utterance."""
    components: Annotated[int, SIZE] = 500
    """Components of the online mixture."""
    dimension: Annotated[int, SIZE] = 768
    """Features of the online mixture."""
    fit_frames: Annotated[int, INDEX] = 100_000
    """Frames that EM is fitted to; 0 leaves EM out."""
    fit_components: Annotated[int, SIZE] = 100
    """Components of the fit."""
    fit_dimension: Annotated[int, SIZE] = 39
    """Features of the fit."""
    fit_iterations: Annotated[int, SIZE] = 10
    """Iterations of EM."""
    rounds: Annotated[int, SIZE] = 5
    """Timed calls of each, in turn; the median counts."""
    out: Path | None = None
    """JSON file for the figures."""


def run(arguments: list[str]) -> None:
    command = parse(BenchGmm, "sjepa bench gmm", arguments)
    results = measure(command, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    shown(results)
    save(results, command.out)


def measure(command: BenchGmm, device: torch.device) -> dict[str, Any]:
    batch = command.batch or (24 if device.type == "cuda" else 2)
    frames = batch * frame_count(round(command.seconds * SAMPLE_RATE))
    results = machine(device) | {"rounds": command.rounds}
    results["online"] = online(frames, command.components, command.dimension, command.rounds, device)
    if command.fit_frames:
        results["fit"] = fit(command, device)
    return results


@torch.no_grad()
def online(frames: int, components: int, dimension: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Posteriors alone, and with the online update that follows them in a step."""
    stage(f"Drawing {frames:,} frames and comparing what both make of them")
    features = draw_frames(frames, components, dimension, seed=0).to(device)
    centres = features[torch.randperm(frames, generator=torch.Generator().manual_seed(0))[:components].to(device)]
    spread = features.var(0, unbiased=False).expand(components, -1)
    start = DiagonalGMM.from_parameters(torch.ones(components, device=device), centres, spread)
    ours, naive = copy.deepcopy(start), copy.deepcopy(start)

    def step() -> Tensor:
        powers = ours.powers(features)
        posterior = torch.softmax(ours.log_joint(powers), dim=1)
        ours.update_online(ours.statistics(powers, posterior), DECAY, MINIMUM_COUNT)
        return posterior

    def naive_step() -> Tensor:
        posterior = naive_posterior(naive, features)
        naive_update(naive, features, posterior, DECAY, MINIMUM_COUNT)
        return posterior

    difference = float((step() - naive_step()).abs().max())
    means = float((ours.means - naive.means).abs().max() / (1 - DECAY))
    posterior_times = in_turn(
        "posteriors",
        {"sjepa": lambda: ours.posterior(features), "as written": lambda: naive_posterior(naive, features)},
        device,
        rounds,
    )
    step_times = in_turn("posteriors and update", {"sjepa": step, "as written": naive_step}, device, rounds)
    return {
        "frames": frames,
        "components": components,
        "dimension": dimension,
        "posterior": figures(posterior_times, ours="sjepa"),
        "posterior and update": figures(step_times, ours="sjepa"),
        "largest_difference": {"posterior": difference, "batch_means": means},
    }


def fit(command: BenchGmm, device: torch.device) -> dict[str, Any]:
    """EM from the same start for as many iterations, and scikit-learn's last E-step, which its fit adds."""
    stage(f"Drawing {command.fit_frames:,} frames for EM, k-means as its start, and a first fit of both")
    frames = draw_frames(command.fit_frames, command.fit_components, command.fit_dimension, seed=1).to(device)
    floor = torch.full_like(frames[0], 1e-6)
    centres = kmeans(frames, command.fit_components, 1, torch.Generator().manual_seed(0))
    start = initial_mixture(frames, centres, floor)
    iterations = command.fit_iterations

    def ours() -> tuple[DiagonalGMM, float]:
        mixture = copy.deepcopy(start)
        for _ in range(iterations):
            mixture.maximize(mixture.expect(frames))
        last = mixture.expect(frames)
        return mixture, float(last.log_likelihood / last.frames)

    try:
        theirs = ScikitLearn(frames.cpu(), start, iterations)
    except ImportError:
        raise UserError("the comparison needs scikit-learn and threadpoolctl: pip install 'sjepa[superb]'") from None
    mixture, log_likelihood = ours()
    peer = theirs.fit("float64", threads=1)
    contestants = {"sjepa": ours} | {
        f"scikit-learn {precision}, {'1 thread' if threads else 'threads as they are'}": (
            lambda precision=precision, threads=threads: theirs.fit(precision, threads)
        )
        for precision in ("float32", "float64")
        for threads in (1, None)
    }
    timed = figures(in_turn("EM", contestants, device, command.rounds), ours="sjepa")
    return {
        "frames": command.fit_frames,
        "components": command.fit_components,
        "dimension": command.fit_dimension,
        "iterations": iterations,
        "em": timed,
        "ratio": min(figure["ratio"] for name, figure in timed.items() if name != "sjepa"),
        "log_likelihood": log_likelihood,
        "largest_difference": {
            "log_likelihood": abs(log_likelihood - peer.score(frames.cpu().double().numpy())),
            "means": float((mixture.means.cpu().double() - torch.from_numpy(peer.means_)).abs().max()),
            "deviations": float(
                (mixture.variances.cpu().double().sqrt() - torch.from_numpy(peer.covariances_).sqrt()).abs().max()
            ),
        },
    }


def shown(results: dict[str, Any]) -> None:
    print(f"{results['device']}, {results['threads']} threads, torch {results['torch']}")
    tables = [("online", "posterior", "posterior"), ("online", "posterior and update", "posterior and update")]
    if "fit" in results:
        tables.append(("fit", "em", f"EM, {results['fit']['iterations']} iterations"))
    for part, key, title in tables:
        found = results[part]
        rows = [[name, f"{row['ms']:,.1f}", f"{row['ratio']:.2f}"] for name, row in found[key].items()]
        size = f"{found['frames']:,} x {found['dimension']}, K = {found['components']}"
        show(f"{title}: {size}", ["", "ms", "times sjepa's"], rows)
        print(
            "largest difference: "
            + ", ".join(f"{name} {value:.1e}" for name, value in found["largest_difference"].items())
        )
