"""`sjepa bench gmm`: compare posteriors, online updates and EM with a direct implementation and scikit-learn."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from sjepa.audio.frames import frame_count
from sjepa.audio.io import SAMPLE_RATE
from sjepa.bounds import INDEX, LENGTH, SIZE, SIZE_OR_DEFAULT
from sjepa.errors import UserError
from sjepa.speed.contest import summarize, time_alternately
from sjepa.speed.mixtures import ScikitLearn, draw_frames, naive_posterior, naive_update
from sjepa.speed.output import announce, describe_machine, print_table, save
from sjepa.subcommands import parse
from sjepa.targets.fit import initial_mixture
from sjepa.targets.gmm import DiagonalGMM
from sjepa.targets.kmeans import kmeans

DECAY, MINIMUM_COUNT = 0.999, 0.01


@dataclass(frozen=True)
class BenchGmm:
    """Time the online update of phase 2 and the fit of phase 1, on frames drawn from a random mixture."""

    batch: Annotated[int, SIZE_OR_DEFAULT] = 0
    """Utterances per online update. By default, 24 on a GPU and 2 on a CPU."""
    seconds: Annotated[float, LENGTH] = 15.0
    """Length of an utterance."""
    components: Annotated[int, SIZE] = 500
    """Components of the online mixture."""
    dimension: Annotated[int, SIZE] = 768
    """Feature dimension of the online mixture."""
    fit_frames: Annotated[int, INDEX] = 100_000
    """Frames for EM. 0 skips EM."""
    fit_components: Annotated[int, SIZE] = 100
    """Components of the EM fit."""
    fit_dimension: Annotated[int, SIZE] = 39
    """Feature dimension of the EM fit."""
    fit_iterations: Annotated[int, SIZE] = 10
    """EM iterations."""
    rounds: Annotated[int, SIZE] = 5
    """Timed calls per implementation. Results are medians."""
    out: Path | None = None
    """JSON file for the results."""


def run(arguments: list[str]) -> None:
    command = parse(BenchGmm, "sjepa bench gmm", arguments)
    results = measure(command, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print_results(results)
    save(results, command.out)


def measure(command: BenchGmm, device: torch.device) -> dict[str, Any]:
    batch = command.batch or (24 if device.type == "cuda" else 2)
    frames = batch * frame_count(round(command.seconds * SAMPLE_RATE))
    results = describe_machine(device) | {"rounds": command.rounds}
    results["online"] = time_online(frames, command.components, command.dimension, command.rounds, device)
    if command.fit_frames:
        results["fit"] = time_fit(command, device)
    return results


@torch.no_grad()
def time_online(frames: int, components: int, dimension: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Time posteriors alone, and posteriors with the online update."""
    announce(f"Drawing {frames:,} frames and comparing the results of both implementations")
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
    posterior_times = time_alternately(
        "posteriors",
        {"sjepa": lambda: ours.posterior(features), "as written": lambda: naive_posterior(naive, features)},
        device,
        rounds,
    )
    step_times = time_alternately("posteriors and update", {"sjepa": step, "as written": naive_step}, device, rounds)
    return {
        "frames": frames,
        "components": components,
        "dimension": dimension,
        "posterior": summarize(posterior_times, ours="sjepa"),
        "posterior and update": summarize(step_times, ours="sjepa"),
        "largest_difference": {"posterior": difference, "batch_means": means},
    }


def time_fit(command: BenchGmm, device: torch.device) -> dict[str, Any]:
    """Time EM from the same start with the same number of iterations, and a final E-step as in scikit-learn."""
    announce(f"Drawing {command.fit_frames:,} frames for EM, initialising with k-means, and fitting both once")
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
    timed = summarize(time_alternately("EM", contestants, device, command.rounds), ours="sjepa")
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


def print_results(results: dict[str, Any]) -> None:
    print(f"{results['device']}, {results['threads']} threads, torch {results['torch']}")
    tables = [("online", "posterior", "posterior"), ("online", "posterior and update", "posterior and update")]
    if "fit" in results:
        tables.append(("fit", "em", f"EM, {results['fit']['iterations']} iterations"))
    for part, key, title in tables:
        found = results[part]
        rows = [[name, f"{row['ms']:,.1f}", f"{row['ratio']:.2f}"] for name, row in found[key].items()]
        size = f"{found['frames']:,} x {found['dimension']}, K = {found['components']}"
        print_table(f"{title}: {size}", ["", "ms", "ratio to sjepa"], rows)
        print(
            "largest difference: "
            + ", ".join(f"{name} {value:.1e}" for name, value in found["largest_difference"].items())
        )
