"""Find the modes of a distribution, and test whether it has only one: Hartigan's dip test."""

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

BINS = 2048
BANDWIDTH = 0.1  # bits
LEAST_SHARE, LEAST_RISE = 0.01, 0.1  # a mode's share of all frames; its rise above the higher adjacent valley
NULL_SIZE, NULL_SAMPLES = 1000, 1000
MOST_VALUES = 20_000  # the dip of this many values, evenly spaced in rank, equals that of all to four digits
METHOD = (
    f"Modes: maxima of a Gaussian kernel estimate with bandwidth {BANDWIDTH:g} bits that hold at least 1% of the "
    "frames and rise a tenth above their valleys. Test of one mode: Hartigan's dip against uniform samples. The "
    "number of frames is divided by their design effect, because frames of an utterance are correlated."
)


class Grid(NamedTuple):
    """Bins with room for the kernel's tails on both sides."""

    centres: np.ndarray

    @property
    def width(self) -> float:
        return float(self.centres[1] - self.centres[0])

    def counts(self, values: np.ndarray) -> np.ndarray:
        place = np.rint((values - self.centres[0]) / self.width).astype(int)
        return np.bincount(np.clip(place, 0, len(self.centres) - 1), minlength=len(self.centres)).astype(float)

    def density(self, counts: np.ndarray, bandwidth: float) -> np.ndarray:
        """Gaussian kernel estimate from binned values."""
        frequencies = np.fft.rfftfreq(2 * len(counts), self.width)
        kernel = np.exp(-2 * (np.pi * frequencies * bandwidth) ** 2)
        smooth = np.fft.irfft(np.fft.rfft(counts, 2 * len(counts)) * kernel)[: len(counts)]
        return smooth / max(counts.sum() * self.width, 1e-12)


def make_grid(values: np.ndarray) -> Grid:
    room = 5 * BANDWIDTH
    return Grid(np.linspace(float(values.min()) - room, float(values.max()) + room, BINS))


def count_modes(utterances: list[np.ndarray], seed: int = 0) -> dict[str, Any]:
    """Find the modes of per-utterance values, and test one mode against several."""
    values = np.concatenate(utterances)
    found: dict[str, Any] = {"method": METHOD, "bandwidth": BANDWIDTH}
    if values.std() < 1e-6:
        return found | {"modes": [describe_mode(float(values.mean()), 1.0)], "test": None}
    grid = make_grid(values)
    counts = grid.counts(values)
    density = grid.density(counts, BANDWIDTH)
    places, valleys = find_prominent_modes(density, counts)
    shares = [float(part.sum() / counts.sum()) for part in np.split(counts, valleys)]
    modes = [describe_mode(float(grid.centres[place]), share) for place, share in zip(places, shares, strict=True)]
    return found | {"modes": modes, "test": dip_test(utterances, seed)}


def find_prominent_modes(density: np.ndarray, counts: np.ndarray) -> tuple[list[int], list[int]]:
    """Find maxima and the valleys between them. Drop the lowest maximum that is too small or too flat until none is."""
    places = [i for i in range(1, len(density) - 1) if density[i - 1] < density[i] >= density[i + 1]]
    while True:
        valleys = [int(a + density[a:b].argmin()) for a, b in pairwise(places)]
        edges = [0, *valleys, len(density)]
        weak = [
            (density[place], index)
            for index, place in enumerate(places)
            if counts[edges[index] : edges[index + 1]].sum() < LEAST_SHARE * counts.sum()
            or density[place]
            < (1 + LEAST_RISE) * max((density[v] for v in valleys[max(0, index - 1) : index + 1]), default=0)
        ]
        if not weak or len(places) == 1:
            return places, valleys
        places.pop(min(weak)[1])


def describe_mode(place: float, share: float) -> dict[str, float]:
    return {"bits": round(max(0.0, place), 3), "share": round(share, 4)}


def dip_test(utterances: list[np.ndarray], seed: int = 0) -> dict[str, float]:
    """Hartigan and Hartigan (1985): the distance to the nearest unimodal distribution, and its p value.

    Among unimodal distributions the uniform one has the largest dips, so the test is conservative for long tails.
    """
    values = np.sort(np.concatenate(utterances))
    thinned = values[np.linspace(0, len(values) - 1, min(len(values), MOST_VALUES)).round().astype(int)]
    statistic, independent = dip(thinned), len(values) / design_effect(utterances)
    p = float((scaled_uniform_dips(seed, NULL_SAMPLES) >= statistic * np.sqrt(independent)).mean())
    return {"dip": round(statistic, 5), "effective_frames": round(independent), "p": p}


@cache
def scaled_uniform_dips(seed: int, samples: int) -> np.ndarray:
    """Dips of uniform samples, multiplied by the square root of the sample size, with which they shrink."""
    draw = np.random.default_rng(seed)
    return np.sqrt(NULL_SIZE) * np.array([dip(np.sort(draw.random(NULL_SIZE))) for _ in range(samples)])


def design_effect(utterances: list[np.ndarray]) -> float:
    """How many correlated frames are worth one independent frame: the largest value over 19 quantiles."""
    values, sizes = np.concatenate(utterances), np.array([len(each) for each in utterances])
    worst = 1.0
    for level in np.quantile(values, np.linspace(0.05, 0.95, 19)):
        share = float((values <= level).mean())
        if not 0 < share < 1 or len(utterances) < 2:
            continue
        errors = np.array([(each <= level).sum() for each in utterances]) - share * sizes
        variance = (errors**2).sum() * len(sizes) / (len(sizes) - 1) / sizes.sum()
        worst = max(worst, float(variance / (share * (1 - share))))
    return worst


def dip(x: np.ndarray) -> float:
    """Hartigan's dip of sorted values, by algorithm AS 217 (with its correction of 1991).

    The package diptest computes the same numbers. It is not used because it is under the GPL, and because it has to be
    compiled on Linux ARM machines.
    """
    n, values = len(x), x.tolist()
    if n < 2 or values[0] == values[-1]:
        return 0.5 / n
    convex, concave = minorant(values), majorant(values)
    low, high, found = 0, n - 1, 1.0
    while True:
        below, above = [high], [low]
        while below[-1] > low:
            below.append(convex[below[-1]])
        while above[-1] < high:
            above.append(concave[above[-1]])
        widest, g, h = widest_gap(values, below, above)
        if widest < found:
            break
        left = [largest_excess(x, below[j + 1], below[j], 1) for j in range(g, len(below) - 1)]
        right = [largest_excess(x, above[j], above[j + 1], -1) for j in range(h, len(above) - 1)]
        found = max(found, *left, *right) if left or right else found
        if (low, high) == (below[g], above[h]):
            break
        low, high = below[g], above[h]
    return found / (2 * n)


def minorant(x: list[float]) -> list[int]:
    """For every value, the previous vertex of the greatest convex minorant that ends there."""
    before = [0] * len(x)
    for j in range(1, len(x)):
        a = j - 1
        while a and (x[j] - x[a]) * (a - before[a]) >= (x[a] - x[before[a]]) * (j - a):
            a = before[a]
        before[j] = a
    return before


def majorant(x: list[float]) -> list[int]:
    """For every value, the next vertex of the least concave majorant that starts there."""
    last = len(x) - 1
    after = [last] * len(x)
    for k in range(last - 1, -1, -1):
        a = k + 1
        while a != last and (x[k] - x[a]) * (a - after[a]) >= (x[a] - x[after[a]]) * (k - a):
            a = after[a]
        after[k] = a
    return after


def widest_gap(x: list[float], below: list[int], above: list[int]) -> tuple[float, int, int]:
    """The largest distance between minorant and majorant, and its index in each."""
    g, h, i, v, widest = len(below) - 1, len(above) - 1, len(below) - 2, 1, 0.0
    if len(below) == 2 and len(above) == 2:
        return 1.0, g, h
    while True:
        if below[i] > above[v]:
            a, b, t = below[i + 1], below[i], above[v]
            gap = (t - a + 1) - (x[t] - x[a]) * (b - a) / (x[b] - x[a])
            v += 1
            if gap >= widest:
                widest, g, h = gap, i + 1, v - 1
        else:
            a, b, t = above[v - 1], above[v], below[i]
            gap = (x[t] - x[a]) * (b - a) / (x[b] - x[a]) - (t - a - 1)
            i -= 1
            if gap >= widest:
                widest, g, h = gap, i + 1, v
        i, v = max(i, 0), min(v, len(above) - 1)
        if below[i] == above[v]:
            return widest, g, h


def largest_excess(x: np.ndarray, start: int, end: int, side: int) -> float:
    """The largest distance between the distribution and a chord between two of its values, on one side."""
    if end - start <= 1 or x[end] == x[start]:
        return 1.0
    ranks = np.arange(end - start + 1)
    chord = (x[start : end + 1] - x[start]) * (end - start) / (x[end] - x[start])
    return float(max(1.0, (side * (ranks - chord) + 1).max()))
