"""Probes: classifiers of speakers, chapters and phones on frozen features."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.cuda_graphs import StepGraphs
from sjepa.errors import UserError
from sjepa.evaluate.logistic import fit_logistic

MLP_WIDTH, MLP_DROPOUT, MLP_LR, MLP_BATCH, MLP_EPOCHS = 256, 0.1, 1e-3, 512, 20
TEST_SHARE = 0.2

Probe = Callable[[Tensor, np.ndarray, Tensor, np.ndarray], float]
"""Maps training features and labels, test features and labels to test accuracy, on the device of the features."""


class Scores(NamedTuple):
    """Accuracies of several splits."""

    mean: float
    deviation: float
    splits: list[float]


def require_scikit_learn() -> None:
    """Raise UserError if probes cannot be fitted. Commands call this before they compute features."""
    try:
        import sklearn.linear_model  # noqa: F401
        import threadpoolctl  # noqa: F401
    except ImportError as error:
        raise UserError("probes need scikit-learn: pip install 'sjepa[superb]'") from error


def linear_probe(train: Tensor, train_labels: np.ndarray, test: Tensor, test_labels: np.ndarray) -> float:
    """Return the test accuracy of logistic regression (C = 1, lbfgs) on standardised features."""
    require_scikit_learn()
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    if len(set(train_labels.tolist())) == 1:  # predict the only class
        return float((test_labels == train_labels[0]).mean())
    train, test = standardize(train, test)
    if train.is_cuda:
        return float((fit_logistic(train, train_labels).predict(test) == test_labels).mean())
    # lbfgs computes many small products, which are slower with several threads.
    with threadpool_limits(1):
        probe = LogisticRegression(C=1.0, max_iter=2000).fit(train.numpy(), train_labels)
        return float(probe.score(test.numpy(), test_labels))


def mlp_probe(train: Tensor, train_labels: np.ndarray, test: Tensor, test_labels: np.ndarray) -> float:
    """Return the test accuracy of an MLP: two hidden layers of 256 ReLU units, 20 epochs of Adam."""
    x, test = (part.float() for part in standardize(train, test))
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

    graphs = StepGraphs() if x.is_cuda else None  # launching a step takes far longer than the step itself
    for _ in range(MLP_EPOCHS):
        for batch in torch.randperm(len(x)).to(x.device).split(MLP_BATCH):
            if graphs is None:
                learn(batch)
            else:
                graphs.run(None, [batch], learn)
    network.eval()
    with torch.inference_mode():
        best = torch.cat([network(chunk).argmax(1) for chunk in test.split(65_536)])
    return float((names[best.cpu().numpy()] == test_labels).mean())


def standardize(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Scale to zero mean and unit variance of the training part. Constant dimensions are only centred."""
    mean, deviation = train.mean(0), train.std(0, unbiased=False)
    deviation[deviation < 1e-8] = 1.0
    return (train - mean) / deviation, (test - mean) / deviation


def utterance_probe(
    x: Tensor, labels: Sequence[str], *, probe: Probe = linear_probe, splits: int = 10, seed: int = 0
) -> Scores:
    """Probe utterance labels from features averaged over time (N, D), on random 80/20 splits."""
    y = np.array(labels)
    if len(set(labels)) < 2:
        raise UserError(f"a probe needs at least two classes; all {len(labels)} utterances are {labels[0]!r}")
    scores = []
    for split in range(splits):
        test, train = split_off_fifth(np.random.default_rng((seed, split)).permutation(len(y)))
        scores.append(probe(x[train], y[train], x[test], y[test]))
    return summarize(scores)


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
    """Probe the phones of frames (N, D), with a fifth of the speakers or a fifth of all frames held out.

    The paper splits by random frames. The neighbours of a test frame, which are nearly identical, are then in the
    training part.
    """
    if by_speaker:
        known = speakers != ""  # frames without a speaker may be from one that is held out
        names = np.unique(speakers[known])
        if len(names) < 2:
            raise UserError(
                f"a phone probe with held-out speakers needs at least two speakers; {len(phones):,} frames have "
                f"{len(names)} (increase --frames)"
            )
        tests = [np.isin(speakers, fifth) for fifth in draw_fifths(names, splits, seed)]
        parts = [(np.flatnonzero(test), np.flatnonzero(known & ~test)) for test in tests]
    else:
        parts = [
            split_off_fifth(np.random.default_rng((seed, split)).permutation(len(phones))) for split in range(splits)
        ]
    return summarize([probe(x[train], phones[train], x[test], phones[test]) for test, train in parts])


def split_off_fifth(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first fifth of an order, and the rest."""
    cut = max(1, round(TEST_SHARE * len(order)))
    return order[:cut], order[cut:]


def draw_fifths(names: np.ndarray, splits: int, seed: int) -> list[np.ndarray]:
    """Return random fifths of the names, one for each split. None is held out twice, so two names make two splits."""
    order = np.random.default_rng(seed).permutation(names)
    size = len(split_off_fifth(order)[0])
    return [order[size * i : size * (i + 1)] for i in range(min(splits, len(order) // size))]


def choose_utterances(frames: Sequence[int], wanted: int, seed: int) -> list[int]:
    """Choose random whole utterances with at least `wanted` frames in total. 0 chooses all."""
    order = np.random.default_rng(seed).permutation(len(frames))
    if not wanted:
        return sorted(order.tolist())
    reached = int(np.searchsorted(np.cumsum(np.array(frames)[order]), wanted)) + 1
    return sorted(order[:reached].tolist())


def summarize(scores: list[float]) -> Scores:
    return Scores(float(np.mean(scores)), float(np.std(scores)), scores)


def chance_accuracy(labels: Sequence[str] | np.ndarray) -> float:
    """Return the accuracy of always predicting the most frequent label."""
    return float(np.unique(np.asarray(labels), return_counts=True)[1].max() / len(labels))
