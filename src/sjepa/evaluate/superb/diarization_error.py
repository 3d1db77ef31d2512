"""Diarization error rates: over frames, as s3prl logs them, and over time, as dscore reports them."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

Turns = Mapping[str, Sequence[tuple[float, float]]]
"""Start and end in seconds of every turn of each speaker of a recording."""
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
MEDIANS = (1, 11)  # frames of the filter


def frame_errors(predicted: np.ndarray, active: np.ndarray) -> tuple[float, float]:
    """Error over speech, and share of right decisions, of one chunk with its speakers matched: (frames, speakers)."""
    wanted, said = active.sum(1), predicted.sum(1)
    right = (active & predicted).sum(1)
    errors = np.maximum(wanted, said) - right  # missed, false and confused speakers
    accuracy = float((active == predicted).mean())
    return (float(errors.sum() / wanted.sum()), accuracy) if wanted.sum() else (0.0, 0.0)


def turns_of(
    probabilities: np.ndarray, shift: float, threshold: float, median: int
) -> dict[str, list[tuple[float, float]]]:
    """Turns of each speaker, in seconds rounded to hundredths as RTTM files hold them: (frames, speakers)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for speaker, column in enumerate((probabilities > threshold).astype(np.int8).T):
        # The median of zeros and ones is what more than half of them are; there is nothing before and after.
        column = (np.convolve(column, np.ones(median, np.int8), "full")[median // 2 :][: len(column)] > median // 2) * 1
        edges = np.flatnonzero(np.diff(np.concatenate([[0], column, [0]])))
        runs = zip(edges[::2], edges[1::2], strict=True)
        timed = [(round(a * shift, 2), round((b - a) * shift, 2)) for a, b in runs]
        found[str(speaker)] = [(start, start + length) for start, length in timed if length > 0]
    return {speaker: turns for speaker, turns in found.items() if turns}


def error_time(hypothesis: Turns, reference: Turns) -> tuple[float, float]:
    """Seconds of error and seconds of speech of a recording: missed, false and confused speech, overlaps included.

    Speakers are matched one to one so that they overlap as long as possible. Nothing around a boundary is forgiven.
    """
    edges = sorted({time for turns in (hypothesis, reference) for each in turns.values() for t in each for time in t})
    if not edges:
        return 0.0, 0.0
    lengths = np.diff(edges)
    centres = np.array(edges[:-1]) + lengths / 2
    said, wanted = (np.array([inside(centres, turns) for turns in side.values()]) for side in (hypothesis, reference))
    said, wanted = (side.reshape(-1, len(centres)) for side in (said, wanted))
    together = (wanted[:, None] * said[None] * lengths).sum(2)  # (reference, hypothesis)
    matched = np.zeros(len(centres))
    for one, other in best_match(together):
        matched += wanted[one] * said[other]
    errors = np.maximum(wanted.sum(0), said.sum(0)) - matched
    return float((errors * lengths).sum()), float((wanted.sum(0) * lengths).sum())


def best_match(together: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of one speaker of each side, matched so that their times together are longest; all orders are tried."""
    few, many = sorted(together.shape)
    table = together if together.shape[0] == few else together.T
    orders = itertools.permutations(range(many), few)
    best = max(orders, key=lambda order: sum(table[one, other] for one, other in enumerate(order)))
    pairs = list(enumerate(best))
    return pairs if together.shape[0] == few else [(other, one) for one, other in pairs]


def inside(times: np.ndarray, turns: Sequence[tuple[float, float]]) -> np.ndarray:
    """1 where a time lies in any of the turns, else 0."""
    found = np.zeros(len(times))
    for start, end in turns:
        found[(times >= start) & (times < end)] = 1
    return found


def error_rate(probabilities: Mapping[str, np.ndarray], references: Mapping[str, Turns], shift: float) -> float:
    """Error over speech of all recordings, in percent, at the best of ten settings, as s3prl's `score.sh` reports it.

    The settings are five thresholds, with and without a median filter.
    """
    rates = []
    for median in MEDIANS:
        for threshold in THRESHOLDS:
            pairs = [
                error_time(turns_of(found, shift, threshold, median), references[name])
                for name, found in probabilities.items()
            ]
            errors, speech = np.sum(pairs, axis=0)
            rates.append(100.0 * errors / max(speech, 1e-9))
    return float(min(rates))
