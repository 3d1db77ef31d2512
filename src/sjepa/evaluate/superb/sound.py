"""Waveform preparation as in s3prl with sox: lower the level, and remove silence."""

from enum import StrEnum

import numpy as np

GAIN = 10 ** (-3.0 / 20)  # sox's `gain -3`
# sox's `silence 1 0.1 0.1% -1 0.1 0.1%`: the level of the last 20 ms determines both ends of a pause.
WINDOW = 320
HOLD = 1600
LEVEL = 1e-3


class Sound(StrEnum):
    """How to prepare the waveform of an utterance."""

    UNCHANGED = "unchanged"
    LOWERED = "lowered"
    """Lower the level by 3 dB."""
    TRIMMED = "trimmed"
    """Lower the level by 3 dB, then remove all silence, including inside the utterance."""


def prepare_waveform(samples: np.ndarray, sound: Sound) -> np.ndarray:
    if sound is Sound.UNCHANGED:
        return samples
    lowered = (samples * np.float32(GAIN)).astype(np.float32)
    return trim_silence(lowered) if sound is Sound.TRIMMED else lowered


def trim_silence(samples: np.ndarray) -> np.ndarray:
    """Remove every stretch of at least 0.1 s below 0.1% of full scale, like sox's effect `silence`.

    Speech starts with 0.1 s above the threshold, and continues until 0.1 s are below it. The level is measured over
    the last 20 ms. After a pause, the measurement starts again.
    """
    squares = samples.astype(np.float64) ** 2
    pieces = []
    first = 0
    while first < len(samples):
        loud = sum_last_window(squares[first:]) > WINDOW * LEVEL**2
        begin = find_first_run(loud)
        if begin is None:
            break
        pause = find_first_run(~loud[begin + HOLD :])
        if pause is None:
            pieces.append(samples[first + begin :])
            break
        pieces.append(samples[first + begin : first + begin + HOLD + pause])
        first += begin + HOLD + pause + HOLD
    return np.concatenate(pieces) if pieces else samples[:0]


def sum_last_window(squares: np.ndarray) -> np.ndarray:
    """Return the sum of the last `WINDOW` values at each sample, with zeros before the first."""
    total = np.cumsum(squares)
    total[WINDOW:] -= total[:-WINDOW].copy()
    return total


def find_first_run(flags: np.ndarray) -> int | None:
    """Return the start of the first run of at least `HOLD` true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    begins, ends = edges[::2], edges[1::2]
    long = np.flatnonzero(ends - begins >= HOLD)
    return int(begins[long[0]]) if len(long) else None
