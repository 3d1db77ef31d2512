"""Block masks, for any length."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sjepa.data.masking import MaskConfig, block_mask


def runs(mask: np.ndarray) -> list[int]:
    """Lengths of the stretches of masked frames."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return (edges[1::2] - edges[::2]).tolist()


@settings(max_examples=400, deadline=None)
@given(frames=st.integers(1, 1500), ratio=st.floats(0.0, 1.0), span=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_the_fraction_is_exact_and_every_run_is_at_least_a_span(
    frames: int, ratio: float, span: int, seed: int
) -> None:
    mask = block_mask(frames, MaskConfig(ratio=ratio, span=span), np.random.default_rng(seed))
    wanted = round(ratio * frames)
    assert mask.shape == (frames,)
    assert mask.sum() == wanted
    assert all(run >= min(span, wanted) for run in runs(mask))


def test_every_frame_is_masked_about_as_often_as_any_other() -> None:
    hits = sum(block_mask(200, MaskConfig(), np.random.default_rng(seed)) for seed in range(3000)) / 3000
    assert abs(hits.mean() - 0.65) < 1e-9
    assert np.ptp(hits[20:-20]) < 0.08  # away from the edges, where fewer spans reach


def test_spans_arrive_one_after_another_as_the_slow_way_has_it() -> None:
    """As many runs as drawing starts one by one, but for the last few frames, which close a gap to hit the share."""
    fast = np.mean([len(runs(block_mask(500, MaskConfig(), np.random.default_rng(seed)))) for seed in range(600)])
    slow = []
    for seed in range(600):
        rng, mask = np.random.default_rng(10_000 + seed), np.zeros(500, dtype=bool)
        while mask.sum() < 325:
            start = rng.integers(491)
            mask[start : start + 10] = True
        slow.append(len(runs(mask)))
    assert 0 < np.mean(slow) - fast < 1.25


def test_a_share_that_is_drawn_is_uniform_and_exact_in_every_utterance() -> None:
    config = MaskConfig(ratio=0.6, lowest=0.2)
    shares = np.array([block_mask(500, config, np.random.default_rng(seed)).mean() for seed in range(2000)])
    assert shares.min() >= 0.2
    assert shares.max() <= 0.6
    quarters = np.histogram(shares, np.linspace(0.2, 0.6, 5))[0] / 2000
    assert abs(quarters - 0.25).max() < 0.04  # four deviations
    whole = MaskConfig(ratio=0.0, lowest=0.0)
    assert not block_mask(500, whole, np.random.default_rng(0)).any()


def test_overlapping_spans_mask_about_half_as_in_hubert() -> None:
    config = MaskConfig(method="overlapping")
    share = np.mean([block_mask(750, config, np.random.default_rng(seed)).mean() for seed in range(300)])
    assert 0.46 < share < 0.52


def test_overlapping_spans_mask_each_frame_as_often_as_counting_says() -> None:
    """Nine or ten of the 19 starts, all different. A frame is visible if none of its starts is among them."""
    config = MaskConfig(method="overlapping", ratio=0.95, span=2)
    masks = np.array([block_mask(20, config, np.random.default_rng(seed)) for seed in range(4000)])
    starts = np.array([1] + [2] * 18 + [1])  # the number of spans that reach each frame
    visible = [np.mean([math.comb(19 - n, count) / math.comb(19, count) for count in (9, 10)]) for n in starts]
    np.testing.assert_allclose(1 - masks.mean(0), visible, atol=0.03)  # four deviations
    assert all(run >= 2 for mask in masks for run in runs(mask))
