"""Discrete units of frames: from the cluster head, the predictor or the mixture, or from k-means on a layer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

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
from sjepa.targets.kmeans import find_nearest, kmeans

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
    head = HeadUnits(upstream)
    state = upstream.states - 1
    return UnitSource(state, state_name(state, upstream.states), lambda _, features: head(features))


def make_predictor_source(upstream: Upstream, run: Path, seed: int) -> UnitSource:
    """The predictor of a run, at masked frames."""
    predictor = PredictorUnits(run, upstream, seed)

    def assign(utterances: Sequence[Utterance], _: Sequence[np.ndarray]) -> np.ndarray:
        tracked = track(utterances, "Masked frames", len(utterances))
        return np.concatenate([predictor(utterance.read()) for utterance in tracked])

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
    offset = frames.mean(0)  # avoids cancellation in norms
    return find_nearest(frames - offset, centres - offset).cpu().numpy()


def require_clusters(upstream: Upstream) -> Clusters:
    """Return the mixture and cluster head of an encoder of sjepa. Raise UserError for other encoders."""
    if not isinstance(upstream.network, Encoder):
        raise UserError(
            f"{upstream.name} is not an encoder of sjepa, and only those have a cluster head and a mixture: "
            "use --units kmeans"
        )
    return upstream.network.clusters


class HeadUnits(nn.Module):
    """The cluster head of an encoder on its output, with nothing masked."""

    def __init__(self, upstream: Upstream):
        super().__init__()
        self.clusters = require_clusters(upstream)
        self.to(upstream.device)
        self.device = upstream.device

    @torch.inference_mode()
    def forward(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Return the units of all frames of utterances, given their features (T, D)."""
        frames = torch.cat([torch.from_numpy(each).float() for each in features])
        parts = (self.clusters.head_posteriors(part.to(self.device)) for part in frames.split(BATCH))
        return torch.cat([posteriors.argmax(-1).cpu() for posteriors in parts]).numpy()


class PredictorUnits(nn.Module):
    """The cluster head of a run on the predictor's output, with every frame masked once over several passes."""

    def __init__(self, run: Path, upstream: Upstream, seed: int):
        super().__init__()
        heads = RunHeads(run, upstream.network)
        if not isinstance(upstream.network, Encoder):
            raise UserError(f"{run} is not a run: only those have a predictor")
        self.mask, self.seed = heads.run.config().mask, seed
        self.encoder, self.predictor = upstream.network, heads.predictor()
        self.head = require_clusters(upstream).head
        self.predictor.to(upstream.device)
        self.head.to(upstream.device)
        self.device = upstream.device

    def forward(self, waveform: np.ndarray) -> np.ndarray:
        """Return the units of all frames of an utterance (N,), in pieces if it is too long for the predictor."""
        total, longest = frame_count(len(waveform)), len(self.predictor.positions)
        units = []
        for frames in split_evenly(total, -(-total // longest)):
            piece = waveform[frame_slice(frames.start, frames.stop)]
            clean = torch.from_numpy(piece).float()[None].to(self.device)
            passes = draw_passes(len(frames), self.mask.ratio, self.mask.span, self.seed)
            masks = torch.from_numpy(passes).to(self.device)
            units.append(predict_masked(self.encoder, self.predictor, self.head, clean, masks).argmax(-1).cpu().numpy())
        return np.concatenate(units)


@torch.inference_mode()
def mixture_units(
    clusters: Clusters, utterances: Iterable[Utterance], features: Sequence[np.ndarray], device: torch.device
) -> np.ndarray:
    """Return the most likely component of the mixture at each frame, given the hidden states (T, D)."""
    found = []
    for utterance, states in zip(utterances, features, strict=True):
        samples = torch.from_numpy(utterance.read()).to(device) if clusters.hidden_state_index is None else None
        found.append(clusters.mixture_units(clusters.mixture_features(samples, torch.from_numpy(states).to(device))))
    return torch.cat(found).cpu().numpy()
