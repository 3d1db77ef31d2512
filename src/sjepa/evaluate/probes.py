"""Probes on frozen features: how easily speakers, chapters and phones are read from them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.cuda_graphs import StepGraphs
from sjepa.errors import UserError
from sjepa.evaluate.logistic import fit_logistic
from sjepa.model.frontend import frame_centres

MLP_WIDTH, MLP_DROPOUT, MLP_LR, MLP_BATCH, MLP_EPOCHS = 256, 0.1, 1e-3, 512, 20
TEST_SHARE = 0.2

Probe = Callable[[Tensor, np.ndarray, Tensor, np.ndarray], float]
"""Training features and labels, test features and labels, to accuracy on test; it runs where the features lie."""


class Scores(NamedTuple):
    """Accuracy over splits."""

    mean: float
    deviation: float
    splits: list[float]


def frame_labels(
    segments: Sequence[tuple[float, float, str]], frames: int, centres: np.ndarray | None = None
) -> list[str]:
    """Label of the segment that holds each frame's centre; our encoder's centres unless others are given."""
    ends = np.array([end for _, end, _ in segments])
    centres = frame_centres(frames) if centres is None else centres
    inside = np.minimum(np.searchsorted(ends, centres, side="right"), len(segments) - 1)
    return [segments[i][2] for i in inside]


def linear_probe(train: Tensor, train_labels: np.ndarray, test: Tensor, test_labels: np.ndarray) -> float:
    """Test accuracy of logistic regression (C = 1, lbfgs) on features standardised by the training part."""
    try:
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise UserError("probes need scikit-learn: pip install 'sjepa[superb]'") from error
    if len(set(train_labels.tolist())) == 1:  # nothing to tell apart: that answer to everything
        return float((test_labels == train_labels[0]).mean())
    train, test = standardised(train, test)
    if train.is_cuda:
        return float((fit_logistic(train, train_labels).predict(test) == test_labels).mean())
    # lbfgs makes many small products, which threads only slow down.
    with threadpool_limits(1):
        probe = LogisticRegression(C=1.0, max_iter=2000).fit(train.numpy(), train_labels)
        return float(probe.score(test.numpy(), test_labels))


def mlp_probe(train: Tensor, train_labels: np.ndarray, test: Tensor, test_labels: np.ndarray) -> float:
    """Test accuracy of two hidden layers of 256 ReLU units, trained for 20 epochs with Adam."""
    x, test = (part.float() for part in standardised(train, test))
    names, numbers = np.unique(train_labels, return_inverse=True)
    y = torch.from_numpy(numbers).to(x.device)
    torch.manual_seed(0)
    sizes = [x.shape[1], MLP_WIDTH, MLP_WIDTH]
    hidden = [layer for size in sizes[:2] for layer in (nn.Linear(size, MLP_WIDTH), nn.ReLU(), nn.Dropout(MLP_DROPOUT))]
    network = nn.Sequential(*hidden, nn.Linear(MLP_WIDTH, len(names))).to(x.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=MLP_LR, fused=True, capturable=x.is_cuda)

    def learn(batch: Tensor) -> None:
        nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()

    graphs = StepGraphs() if x.is_cuda else None  # its steps are far shorter than a host takes to launch them
    for _ in range(MLP_EPOCHS):
        for batch in torch.randperm(len(x)).to(x.device).split(MLP_BATCH):
            if graphs is None:
                learn(batch)
            else:
                graphs.run(None, [batch], learn)
    network.eval()
    with torch.inference_mode():
        found = torch.cat([network(chunk).argmax(1) for chunk in test.split(65_536)])
    return float((names[found.cpu().numpy()] == test_labels).mean())


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Zero mean and unit variance by the training part; a dimension that is constant there stays as it is."""
    mean, deviation = train.mean(0), train.std(0, unbiased=False)
    deviation[deviation < 1e-8] = 1.0
    return (train - mean) / deviation, (test - mean) / deviation


def utterance_probe(
    x: Tensor, labels: Sequence[str], *, probe: Probe = linear_probe, splits: int = 10, seed: int = 0
) -> Scores:
    """Accuracy over utterances from frames averaged over time (N, D), on random 80/20 splits."""
    y = np.array(labels)
    if len(set(labels)) < 2:
        raise UserError(f"a probe needs at least two classes; all {len(labels)} utterances are {labels[0]!r}")
    scores = []
    for split in range(splits):
        test, train = divide(np.random.default_rng((seed, split)).permutation(len(y)))
        scores.append(probe(x[train], y[train], x[test], y[test]))
    return summary(scores)


def phone_probe(
    x: Tensor,
    phones: np.ndarray,
    speakers: np.ndarray,
    *,
    probe: Probe = linear_probe,
    by_speaker: bool = True,
    splits: int = 3,
    seed: int = 0,
) -> Scores:
    """Accuracy over frames (N, D): a fifth of the speakers held out, or a fifth of all frames whoever said them.

    Random frames are the paper's split; a frame's neighbours, nearly its copies, are then in the training part.
    """
    names = np.unique(speakers)
    if by_speaker and len(names) < 2:
        raise UserError(
            f"a speaker-disjoint phone probe needs at least two speakers; there is {str(names[0])!r} alone in "
            f"{len(phones):,} frames (--frames takes more)"
        )
    if by_speaker:
        order = np.random.default_rng(seed).permutation(names)
        fifth = len(divide(order)[0])
        # No speaker is held out twice, so two speakers make two splits.
        fifths = [order[fifth * i : fifth * (i + 1)] for i in range(min(splits, len(order) // fifth))]
        parts = [(np.flatnonzero(held), np.flatnonzero(~held)) for held in (np.isin(speakers, part) for part in fifths)]
    else:
        parts = [divide(np.random.default_rng((seed, split)).permutation(len(phones))) for split in range(splits)]
    return summary([probe(x[train], phones[train], x[test], phones[test]) for test, train in parts])


def divide(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first fifth of an order, and the rest."""
    cut = max(1, round(TEST_SHARE * len(order)))
    return order[:cut], order[cut:]


def enough_utterances(frames: Sequence[int], wanted: int, seed: int) -> list[int]:
    """Utterances, at random but whole, that make up so many frames; 0 takes all."""
    order = np.random.default_rng(seed).permutation(len(frames))
    if wanted < 0:
        raise UserError(f"--frames {wanted}: a number of frames, or 0 for all")
    if not wanted:
        return sorted(order.tolist())
    reached = int(np.searchsorted(np.cumsum(np.array(frames)[order]), wanted)) + 1
    return sorted(order[:reached].tolist())


def summary(scores: list[float]) -> Scores:
    return Scores(float(np.mean(scores)), float(np.std(scores)), scores)


def chance(labels: Sequence[str] | np.ndarray) -> float:
    """Accuracy of always saying the most frequent label."""
    return float(np.unique(np.asarray(labels), return_counts=True)[1].max() / len(labels))


Features = Callable[[np.ndarray], np.ndarray]
"""Samples of one utterance (float32, 16 kHz) to frames (T, D)."""
