"""Diarization error rates: over frames as in s3prl, and over time as in dscore."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

Turns = Mapping[str, Sequence[tuple[float, float]]]
"""Start and end in seconds of the turns of each speaker in a recording."""
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
MEDIANS = (1, 11)  # frames of the median filter


def frame_errors(predicted: np.ndarray, active: np.ndarray) -> tuple[float, float]:
    """Return diarization error and accuracy of one chunk with matched speakers: (frames, speakers)."""
    wanted, found = active.sum(1), predicted.sum(1)
    right = (active & predicted).sum(1)
    errors = np.maximum(wanted, found) - right  # missed, false and confused speakers
    accuracy = float((active == predicted).mean())
    return (float(errors.sum() / wanted.sum()), accuracy) if wanted.sum() else (0.0, 0.0)


def find_turns(
    probabilities: np.ndarray, shift: float, threshold: float, median: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the turns of each speaker from probabilities (frames, speakers), rounded to hundredths of a second."""
    found: dict[str, list[tuple[float, float]]] = {}
    for speaker, column in enumerate((probabilities > threshold).astype(np.int8).T):
        # The median of zeros and ones is their majority. Frames outside the recording are zero.
        column = (np.convolve(column, np.ones(median, np.int8), "full")[median // 2 :][: len(column)] > median // 2) * 1
        edges = np.flatnonzero(np.diff(np.concatenate([[0], column, [0]])))
        runs = zip(edges[::2], edges[1::2], strict=True)
        timed = [(round(a * shift, 2), round((b - a) * shift, 2)) for a, b in runs]
        found[str(speaker)] = [(start, start + length) for start, length in timed if length > 0]
    return {speaker: turns for speaker, turns in found.items() if turns}


def error_time(hypothesis: Turns, reference: Turns) -> tuple[float, float]:
    """Return seconds of error (missed, false and confused speech, including overlaps) and seconds of speech.

    Speakers are matched one to one with the largest overlap. There is no collar around boundaries.
    """
    edges = sorted({time for turns in (hypothesis, reference) for each in turns.values() for t in each for time in t})
    if not edges:
        return 0.0, 0.0
    lengths = np.diff(edges)
    centres = np.array(edges[:-1]) + lengths / 2
    found, wanted = (
        np.array([mark_inside(centres, turns) for turns in side.values()]) for side in (hypothesis, reference)
    )
    found, wanted = (side.reshape(-1, len(centres)) for side in (found, wanted))
    together = (wanted[:, None] * found[None] * lengths).sum(2)  # (reference, hypothesis)
    matched = np.zeros(len(centres))
    for one, other in match_speakers(together):
        matched += wanted[one] * found[other]
    errors = np.maximum(wanted.sum(0), found.sum(0)) - matched
    return float((errors * lengths).sum()), float((wanted.sum(0) * lengths).sum())


def match_speakers(together: np.ndarray) -> list[tuple[int, int]]:
    """Match the speakers of both sides with the largest total overlap, by trying all permutations."""
    few, many = sorted(together.shape)
    table = together if together.shape[0] == few else together.T
    orders = itertools.permutations(range(many), few)
    best = max(orders, key=lambda order: sum(table[one, other] for one, other in enumerate(order)))
    pairs = list(enumerate(best))
    return pairs if together.shape[0] == few else [(other, one) for one, other in pairs]


def mark_inside(times: np.ndarray, turns: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return 1 for each time inside any of the turns, otherwise 0."""
    found = np.zeros(len(times))
    for start, end in turns:
        found[(times >= start) & (times < end)] = 1
    return found


def diarization_error_rate(
    probabilities: Mapping[str, np.ndarray], references: Mapping[str, Turns], shift: float
) -> float:
    """Return the error of all recordings in percent, for the best of ten settings as in s3prl's `score.sh`.

    The settings are five thresholds, with and without a median filter.
    """
    rates = []
    for median in MEDIANS:
        for threshold in THRESHOLDS:
            pairs = [
                error_time(find_turns(found, shift, threshold, median), references[name])
                for name, found in probabilities.items()
            ]
            errors, speech = np.sum(pairs, axis=0)
            rates.append(100.0 * errors / max(speech, 1e-9))
    return float(min(rates))
