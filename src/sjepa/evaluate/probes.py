"""Linear probes on frozen features: how easily phones and speakers are read from them."""

from collections.abc import Callable, Sequence

import numpy as np

from sjepa.errors import UserError

FRAME_SHIFT, FRAME_CENTRE = 320, 200  # samples: frame t is centred at 320 t + 200


def frame_labels(segments: Sequence[tuple[float, float, str]], frames: int) -> list[str]:
    """Label of the segment that holds each frame's centre."""
    ends = np.array([end for _, end, _ in segments])
    centres = (FRAME_SHIFT * np.arange(frames) + FRAME_CENTRE) / 16_000
    inside = np.minimum(np.searchsorted(ends, centres, side="right"), len(segments) - 1)
    return [segments[i][2] for i in inside]


def linear_probe(train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> float:
    """Test accuracy of logistic regression (C = 1, lbfgs) on features standardised by the training part."""
    try:
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise UserError("probes need scikit-learn: pip install 'sjepa[demo]'") from error
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation < 1e-8] = 1.0
    # lbfgs makes many small products, which threads only slow down.
    with threadpool_limits(1):
        probe = LogisticRegression(C=1.0, max_iter=2000).fit((train - mean) / deviation, train_labels)
        return float(probe.score((test - mean) / deviation, test_labels))


def phone_probe(
    features: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    speakers: Sequence[str],
    *,
    seed: int = 0,
    frames: int = 12_000,
) -> float:
    """Frame accuracy over phones with a quarter of the speakers held out; at most `frames` frames to train on."""
    generator = np.random.default_rng(seed)
    names = generator.permutation(sorted(set(speakers)))
    if len(names) < 2:
        raise UserError("a speaker-disjoint phone probe needs at least two speakers")
    held_out = set(names[: max(1, len(names) // 4)])
    parts = []
    for chosen in (lambda s: s not in held_out, lambda s: s in held_out):
        x = np.concatenate([f for f, s in zip(features, speakers, strict=True) if chosen(s)])
        y = np.concatenate([label for label, s in zip(labels, speakers, strict=True) if chosen(s)])
        some = generator.permutation(len(x))[:frames]
        parts += [x[some], y[some]]
    return linear_probe(*parts)


def utterance_probe(features: Sequence[np.ndarray], labels: Sequence[str], *, seed: int = 0, splits: int = 3) -> float:
    """Accuracy over utterances from frames averaged over time; mean of random 80/20 splits."""
    x, y = np.stack([f.mean(0) for f in features]), np.array(labels)
    if len(set(labels)) < 2:
        raise UserError("a probe needs at least two classes")
    scores = []
    for split in range(splits):
        order = np.random.default_rng((seed, split)).permutation(len(x))
        cut = max(1, len(x) // 5)
        scores.append(linear_probe(x[order[cut:]], y[order[cut:]], x[order[:cut]], y[order[:cut]]))
    return float(np.mean(scores))


def chance(labels: Sequence[str] | np.ndarray) -> float:
    """Accuracy of always saying the most frequent label."""
    return float(np.unique(np.asarray(labels), return_counts=True)[1].max() / len(labels))


Features = Callable[[np.ndarray], np.ndarray]
"""Samples of one utterance (float32, 16 kHz) to frames (T, D)."""
