"""What s3prl does to waveforms through sox before an encoder sees them: a lower level, and silence taken out."""

from enum import StrEnum

import numpy as np

GAIN = 10 ** (-3.0 / 20)  # sox's `gain -3`
# sox's `silence 1 0.1 0.1% -1 0.1 0.1%`: both ends of a pause are found by the level of the last 20 ms.
WINDOW = 320
HOLD = 1600
LEVEL = 1e-3


class Sound(StrEnum):
    """How an utterance's waveform is prepared."""

    UNCHANGED = "unchanged"
    LOWERED = "lowered"
    """By 3 dB."""
    TRIMMED = "trimmed"
    """By 3 dB, and then without silence, also inside the utterance."""


def prepare(samples: np.ndarray, sound: Sound) -> np.ndarray:
    if sound is Sound.UNCHANGED:
        return samples
    lowered = (samples * np.float32(GAIN)).astype(np.float32)
    return trim_silence(lowered) if sound is Sound.TRIMMED else lowered


def trim_silence(samples: np.ndarray) -> np.ndarray:
    """Without every stretch of at least 0.1 s below 0.1% of full scale, as sox's effect `silence` takes it out.

    Speech begins with 0.1 s that are all above the level, and goes on until 0.1 s are all below it. The level is that
    of the last 20 ms; what was heard before a pause does not count after it.
    """
    squares = samples.astype(np.float64) ** 2
    pieces = []
    first = 0
    while first < len(samples):
        loud = last_window_sums(squares[first:]) > WINDOW * LEVEL**2
        begin = first_run(loud)
        if begin is None:
            break
        pause = first_run(~loud[begin + HOLD :])
        if pause is None:
            pieces.append(samples[first + begin :])
            break
        pieces.append(samples[first + begin : first + begin + HOLD + pause])
        first += begin + HOLD + pause + HOLD
    return np.concatenate(pieces) if pieces else samples[:0]


def last_window_sums(squares: np.ndarray) -> np.ndarray:
    """At each sample the sum of the last `WINDOW` values; before the first there is nothing."""
    total = np.cumsum(squares)
    total[WINDOW:] -= total[:-WINDOW].copy()
    return total


def first_run(flags: np.ndarray) -> int | None:
    """Where the first run of at least `HOLD` true values begins."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    begins, ends = edges[::2], edges[1::2]
    long = np.flatnonzero(ends - begins >= HOLD)
    return int(begins[long[0]]) if len(long) else None
