"""Discrete units of frames: from the cluster head, the predictor or the mixture, or from k-means on a layer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sjepa.audio.frames import frame_count, frame_slice
from sjepa.data.sampler import split_evenly
from sjepa.errors import UserError
from sjepa.evaluate.labelled import LabelledUtterance
from sjepa.evaluate.probe_names import state_name
from sjepa.evaluate.probing import extract_features
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.upstream import Upstream
from sjepa.model.masked_prediction import draw_passes, predict_masked
from sjepa.progress import track
from sjepa.runs.encoder import Encoder
from sjepa.runs.heads import RunHeads
from sjepa.targets.clusters import BATCH, Clusters
from sjepa.targets.kmeans import assign_clusters, kmeans

KMEANS_PASSES = 20


@dataclass(frozen=True)
class UnitSource:
    """One kind of units: what it reads, and how it assigns them."""

    state: int
    """The hidden state whose features it needs."""
    layer: str
    """Name of what it reads, for results."""
    assign: Callable[[Sequence[Utterance], Sequence[np.ndarray]], np.ndarray]
    """Maps utterances and their features (T, D) to the units of all frames."""


def make_head_source(upstream: Upstream) -> UnitSource:
    """The cluster head at visible frames of the last layer."""
    clusters, state = require_clusters(upstream), upstream.states - 1
    return UnitSource(
        state, state_name(state, upstream.states), lambda _, features: head_units(clusters, features, upstream.device)
    )


def make_predictor_source(upstream: Upstream, run: Path, seed: int) -> UnitSource:
    """The cluster head of a run on the predictor's output, with every frame masked once over several passes."""
    heads, encoder, device = RunHeads(run, upstream.network), upstream.network, upstream.device
    if not isinstance(encoder, Encoder):
        raise UserError(f"{run} is not a run: only those have a predictor")
    predictor, head, mask = heads.predictor().to(device), encoder.clusters.head, heads.run.config().mask

    def predict(piece: np.ndarray) -> np.ndarray:
        passes = draw_passes(frame_count(len(piece)), mask.ratio, mask.span, seed)
        clean, masks = torch.from_numpy(piece).float()[None].to(device), torch.from_numpy(passes).to(device)
        return predict_masked(encoder, predictor, head, clean, masks).argmax(-1).cpu().numpy()

    def assign(utterances: Sequence[Utterance], _: Sequence[np.ndarray]) -> np.ndarray:
        waveforms = (utterance.read() for utterance in track(utterances, "Masked frames", len(utterances)))
        longest = len(predictor.positions)  # the predictor reads no longer piece
        return np.concatenate([predict(piece) for samples in waveforms for piece in split_waveform(samples, longest)])

    state = upstream.states - 1
    return UnitSource(state, state_name(state, upstream.states), assign)


def make_mixture_source(upstream: Upstream) -> UnitSource:
    """The mixture of an encoder on its own layer, or on features of the audio itself."""
    clusters = require_clusters(upstream)
    state = upstream.states - 1 if clusters.hidden_state_index is None else clusters.hidden_state_index
    layer = clusters.info.targets if clusters.hidden_state_index is None else state_name(state, upstream.states)
    return UnitSource(
        state, layer, lambda utterances, features: mixture_units(clusters, utterances, features, upstream.device)
    )


def make_kmeans_source(
    upstream: Upstream,
    state: int,
    clusters: int,
    seed: int,
    codebook: Sequence[LabelledUtterance] | None,
    frames: int,
) -> UnitSource:
    """K-means on any layer, fitted on `frames` frames of `codebook`, or on the features that get units."""

    def assign(_: Sequence[Utterance], features: Sequence[np.ndarray]) -> np.ndarray:
        fitted_on = None
        if codebook is not None:
            fitted_on = [
                x[0] for x in extract_features(upstream, codebook, [state], frames, seed, only_framed=True).frames
            ]
        return kmeans_units(features, clusters, seed, upstream.device, fitted_on)

    return UnitSource(state, state_name(state, upstream.states), assign)


def kmeans_units(
    features: Sequence[np.ndarray],
    clusters: int,
    seed: int,
    device: torch.device,
    codebook_features: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Return the index of the nearest k-means centre for each frame of `features`.

    K-means is fitted on `codebook_features`, or on `features` if they are None.
    """
    frames = torch.from_numpy(np.concatenate(features)).float().to(device)
    fitted_on = frames
    if codebook_features is not None:
        fitted_on = torch.from_numpy(np.concatenate(codebook_features)).float().to(device)
    if not 1 <= clusters <= len(fitted_on):
        raise UserError(f"--clusters {clusters}: must be between 1 and the {len(fitted_on):,} frames")
    centres = kmeans(fitted_on, clusters, KMEANS_PASSES, torch.Generator().manual_seed(seed))
    return assign_clusters(frames, centres).cpu().numpy()


def require_clusters(upstream: Upstream) -> Clusters:
    """Return the mixture and cluster head of an encoder of sjepa. Raise UserError for other encoders."""
    if not isinstance(upstream.network, Encoder):
        raise UserError(
            f"{upstream.name} is not an encoder of sjepa, and only those have a cluster head and a mixture: "
            "use --units kmeans"
        )
    return upstream.network.clusters


@torch.inference_mode()
def head_units(clusters: Clusters, features: Sequence[np.ndarray], device: torch.device) -> np.ndarray:
    """Return the most likely cluster of the cluster head at each frame, given the features (T, D)."""
    frames = torch.cat([torch.from_numpy(each).float() for each in features])
    parts = (clusters.head_posteriors(part.to(device)) for part in frames.split(BATCH))
    return torch.cat([posteriors.argmax(-1).cpu() for posteriors in parts]).numpy()


def split_waveform(waveform: np.ndarray, longest: int) -> Iterator[np.ndarray]:
    """Yield the pieces of a waveform, each with about the same number of frames, at most `longest`."""
    total = frame_count(len(waveform))
    for frames in split_evenly(total, -(-total // longest)):
        yield waveform[frame_slice(frames.start, frames.stop)]


@torch.inference_mode()
def mixture_units(
    clusters: Clusters, utterances: Iterable[Utterance], features: Sequence[np.ndarray], device: torch.device
) -> np.ndarray:
    """Return the most likely component of the mixture at each frame, given the hidden states (T, D)."""
    units = []
    for utterance, states in zip(utterances, features, strict=True):
        samples = torch.from_numpy(utterance.read()).to(device) if clusters.hidden_state_index is None else None
        units.append(clusters.mixture_units(clusters.mixture_features(samples, torch.from_numpy(states).to(device))))
    return torch.cat(units).cpu().numpy()
