"""Cut long recordings into stretches: by voice activity if it is known, otherwise at the quietest moments."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sjepa.audio.io import SAMPLE_RATE, check_samples

HOP = 160  # samples at 16 kHz between two readings of the loudness
SMOOTH = 20  # readings: a cut needs 200 ms of quiet, longer than the closure of a stop
LONGEST_PAUSE = 1.0  # seconds: stretches of voice with a shorter pause are joined

Stretch = tuple[int, int]  # first sample and length, at 16 kHz


def loudness(sound: Any, start: int, samples: int) -> np.ndarray:
    """Mean square of every 10 ms, starting at a sample (at 16 kHz), read minute by minute at the file's own rate."""
    hop = sound.samplerate / 100
    count = samples // HOP
    power = np.empty(count)
    sound.seek(min(round(start * sound.samplerate / SAMPLE_RATE), sound.frames))
    for first in range(0, count, 6000):
        last = min(first + 6000, count)
        block = sound.read(round(last * hop) - round(first * hop), dtype="float32", always_2d=True)
        check_samples(block)
        squares = np.square(block).mean(axis=1, dtype=np.float64)
        squares = np.pad(squares, (0, max(0, round((last - first) * hop) - len(squares))))
        edges = np.round(np.arange(last - first) * hop).astype(int)
        power[first:last] = np.add.reduceat(squares, edges) / hop
    return power


def cut_at_silences(power: np.ndarray, start: int, samples: int, limit: int) -> list[Stretch]:
    """Cut into stretches of at most `limit` samples, each at the quietest 200 ms of its second half. Drop zeros."""
    smooth = np.convolve(power, np.ones(SMOOTH) / SMOOTH, mode="same")
    stretches = []
    at, end = 0, samples
    while end - at > limit:
        earliest, latest = (at + limit // 2) // HOP, min(at + limit, end - SAMPLE_RATE // 2) // HOP
        window = smooth[earliest : max(latest, earliest + 1)]
        # Cut in the middle of the quiet part, because the loudness may be constant for a second.
        quietest = np.flatnonzero(window <= window.min())
        cut = (earliest + int(quietest[len(quietest) // 2])) * HOP
        stretches.append((at, cut - at))
        at = cut
    stretches.append((at, end - at))
    return [(start + at, length) for at, length in stretches if power[at // HOP : (at + length) // HOP].any()]


def join_voice(voice: Sequence[Sequence[float]], samples: int, limit: int) -> list[Stretch]:
    """Join stretches of speech (seconds) over short pauses, up to `limit` samples. One alone may be longer."""
    stretches: list[Stretch] = []
    for begin, finish in voice:
        first, last = round(begin * SAMPLE_RATE), min(round(finish * SAMPLE_RATE), samples)
        if last <= first:
            continue
        if stretches:
            before, length = stretches[-1]
            if first - (before + length) <= LONGEST_PAUSE * SAMPLE_RATE and last - before <= limit:
                stretches[-1] = (before, last - before)
                continue
        stretches.append((first, last - first))
    return stretches
