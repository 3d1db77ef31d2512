"""Noise and mixing at exactly the drawn levels, and nowhere else."""

import numpy as np
import pytest
import torch
from scipy import stats

from sjepa.audio.augment import (
    AugmentConfig,
    Draws,
    add_noise,
    align_features,
    apply_equalizer,
    augment,
    change_speed,
    draw,
    mix_utterances,
    student_samples,
)


def draws(batch: int, seed: int = 0, **settings: float | str) -> torch.Tensor:
    generators = [np.random.default_rng((seed, i)) for i in range(batch)]
    return draw(generators, AugmentConfig(**{"p_noise": 1.0, "p_mix": 1.0, **settings}))


def test_noise_is_added_at_the_drawn_signal_to_noise_ratio() -> None:
    clean = torch.randn(8, 4000) * torch.rand(8, 1)
    recording = (torch.randn(50_000) * 3000).to(torch.int16)
    d = Draws.from_rows(draws(8, noise="recordings"))
    added = add_noise(clean, d, recording) - clean
    ratio = 10 * torch.log10(clean.square().mean(1) / added.square().mean(1))
    np.testing.assert_allclose(ratio.numpy(), d.noise_snr.numpy(), atol=1e-2)
    assert (added != 0).float().mean(1).min() > 0.99  # recordings cover all of an utterance
    assert d.noise_snr.min() >= -5
    assert d.noise_snr.max() <= 20


@pytest.mark.parametrize("batch", [2, 5])
def test_without_recordings_the_noise_is_a_stretch_of_another_utterance(batch: int) -> None:
    """At most half of the utterance, as in WavLM, at the drawn ratio of the utterance to that stretch."""
    clean = torch.randn(batch, 3000)
    d = Draws.from_rows(draws(batch))
    added = add_noise(clean, d, None) - clean
    for row in range(batch):
        touched = torch.nonzero(added[row]).flatten()
        first, last = int(touched[0]), int(touched[-1]) + 1
        assert last - first == max(1, int(d.noise_length[row] * 3000)) <= 1500
        similarity = torch.cosine_similarity(added[row, first:last][None], clean[:, first:last])
        assert similarity.argmax() != row
        assert similarity.max() > 0.999
        ratio = 10 * torch.log10(clean[row].square().mean() / added[row, first:last].square().mean())
        assert abs(float(ratio) - d.noise_snr[row]) < 1e-2


def test_augmentation_is_what_a_loop_over_utterances_makes_of_it() -> None:
    """The paper's two equations sample by sample, with and without noise recordings."""
    clean = torch.randn(7, 900, dtype=torch.float64) * torch.rand(7, 1, dtype=torch.float64)
    recording = torch.randn(5000, dtype=torch.float64)
    for noise in (None, recording):
        rows = draws(7, seed=3, p_noise=0.6, p_mix=0.6, noise="" if noise is None else "recordings")
        expected = [augment_slowly(row, clean.numpy(), rows.numpy(), noise) for row in range(7)]
        np.testing.assert_allclose(augment(clean, rows, noise).numpy(), np.stack(expected), rtol=1e-9, atol=1e-12)


def augment_slowly(row: int, clean: np.ndarray, rows: np.ndarray, noise: torch.Tensor | None) -> np.ndarray:
    drawn = dict(zip(Draws._fields, rows[:, row], strict=False))
    batch, samples = clean.shape
    x = clean[row].copy()
    if drawn["noisy"]:
        if noise is not None:
            start = int(drawn["noise_place"] * (len(noise) - samples + 1))
            n, first = noise.numpy()[start : start + samples], 0
        else:
            other = (row + 1 + int(drawn["noise_place"] * (batch - 1))) % batch
            length = max(1, int(drawn["noise_length"] * samples))
            first = int(drawn["noise_start"] * (samples - length + 1))
            n = clean[other, first : first + length]
        scale = np.sqrt(np.mean(clean[row] ** 2) / (10 ** (drawn["noise_snr"] / 10) * np.mean(n**2)))
        for i, value in enumerate(n):
            x[first + i] += scale * value
    if drawn["mixed"]:
        length = max(1, int(drawn["mix_length"] * samples))
        first, source = (int(drawn[name] * (samples - length + 1)) for name in ("mix_start", "mix_from"))
        y = clean[int(drawn["mix_partner"]), source : source + length]
        energy = np.mean(x[first : first + length] ** 2)
        scale = np.sqrt(energy * 10 ** (drawn["mix_ratio"] / 10) / np.mean(y**2))
        for i, value in enumerate(y):
            x[first + i] += scale * value
    return x


def test_mixing_covers_one_stretch_at_the_drawn_ratio() -> None:
    clean = torch.randn(6, 5000)
    d = Draws.from_rows(draws(6))
    added = mix_utterances(clean, clean, d) - clean
    for row in range(6):
        touched = torch.nonzero(added[row]).flatten()
        first, last = int(touched[0]), int(touched[-1]) + 1
        length = max(1, int(d.mix_length[row] * 5000))
        assert last - first == length <= 2500
        assert d.mix_partner[row] != row
        stretch = clean[row, first:last].square().sum()
        ratio = 10 * torch.log10(added[row].square().sum() / stretch)
        assert abs(float(ratio) - d.mix_ratio[row]) < 1e-2
        start = int(d.mix_from[row] * (5000 - length + 1))
        source = clean[int(d.mix_partner[row]), start : start + length]
        assert torch.cosine_similarity(source, added[row, first:last], dim=0) > 0.999


def test_probabilities_hold_and_untouched_utterances_stay_as_they_are() -> None:
    drawn = draws(4000, p_noise=0.25, p_mix=0.25)
    d = Draws.from_rows(drawn.numpy())
    assert abs(d.noisy.mean() - 0.25) < 0.03
    assert abs(d.mixed.mean() - 0.25) < 0.03
    assert abs((d.noisy * d.mixed).mean() - 0.0625) < 0.02
    clean = torch.randn(64, 800)
    some = drawn[:, :64].clone()
    some[Draws._fields.index("mix_partner")] = (torch.arange(64) + 1) % 64
    before, out = clean.clone(), augment(clean, some)
    untouched = (some[Draws._fields.index("noisy")] + some[Draws._fields.index("mixed")] == 0).numpy()
    assert torch.equal(out[untouched], clean[untouched])
    assert torch.equal(clean, before)
    changed = (out != clean).any(1).numpy()
    assert (changed == ~untouched).all()


def test_draws_are_uniform_over_their_ranges_and_independent() -> None:
    rows = draws(4000, p_noise=0.5, p_mix=0.5, speed=0.1, equalizer=6.0).numpy()
    drawn = Draws.from_rows(rows)
    ranges = {
        "noise_place": (0, 1), "noise_snr": (-5, 20), "mix_length": (0, 0.5), "mix_start": (0, 1), "mix_from": (0, 1),
        "mix_ratio": (-5, 5), "rate": (0.9, 1.1), "noise_length": (0, 0.5), "noise_start": (0, 1),
    }  # fmt: skip
    fields = [(getattr(drawn, name), *bounds) for name, bounds in ranges.items()]
    for values, low, high in [*fields, *((gain, -6, 6) for gain in drawn.gains)]:
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 0.001
    assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.07  # four deviations


def test_every_other_utterance_is_mixed_in_equally_often() -> None:
    partners = np.stack([Draws.from_rows(draws(5, seed).numpy()).mix_partner for seed in range(400)])
    steps = (partners - np.arange(5)) % 5
    counts = np.bincount(steps.astype(int).ravel(), minlength=5)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 0.001


def test_silence_and_a_batch_of_one_are_harmless() -> None:
    out = augment(torch.zeros(3, 1000), draws(3))
    assert torch.isfinite(out).all()
    assert torch.equal(augment(torch.ones(1, 1000), draws(1)), torch.ones(1, 1000))  # there is no other utterance
    two = Draws.from_rows(draws(2))
    assert (two.noisy.tolist(), two.mixed.tolist(), two.mix_partner.tolist()) == ([1, 1], [1, 1], [1, 0])


def test_a_change_of_speed_is_a_resampling() -> None:
    """Tones below the new Nyquist frequency come out at the frequency that the rate gives them."""
    time = torch.arange(8000, dtype=torch.float64) / 16_000
    for rate in (0.87, 1.0, 1.13):
        for hertz in (150.0, 1000.0, 5000.0):
            tone = torch.sin(2 * torch.pi * hertz * time).float()[None]
            found = change_speed(tone, torch.tensor([rate], dtype=torch.float64), 6000)[0]
            expected = torch.sin(2 * torch.pi * hertz * rate * time[:6000]).float()
            assert (found - expected)[20:-20].abs().max() < 0.02, (rate, hertz)


def test_faster_audio_loses_what_would_alias() -> None:
    """White noise has the same power at all frequencies. At a rate above 1, the share 1 / rate of it does not alias."""
    noise = torch.randn(4, 30_000, generator=torch.Generator().manual_seed(0))
    rates = torch.tensor([0.8, 1.0, 1.25, 1.5], dtype=torch.float64)
    power = change_speed(noise, rates, 20_000).square().mean(1)
    expected = noise.square().mean(1) / rates.clamp(min=1.0)
    np.testing.assert_allclose(power.numpy(), expected.numpy(), rtol=0.1)


def test_utterances_of_a_batch_have_their_own_speed() -> None:
    clean = torch.randn(2, 3000)
    rates = torch.tensor([0.9, 1.1], dtype=torch.float64)
    both = change_speed(clean, rates, 2500)
    for row in range(2):
        torch.testing.assert_close(both[row], change_speed(clean[row : row + 1], rates[row : row + 1], 2500)[0])


def test_features_follow_the_speed_of_the_audio() -> None:
    """They are interpolated between the frames next to the middle of a frame of the faster or slower audio."""
    drawn = draws(3, speed=0.2)
    rate = Draws.from_rows(drawn).rate
    assert (rate - 1).abs().max() > 0.02
    features = torch.randn(3, 49, 2)
    student_frames = (student_samples(320 * 49 + 80, 0.2) - 400) // 320 + 1
    aligned = align_features(features, drawn, student_frames)
    middles = 320 * np.arange(49) + 200  # of the frames, in samples of the clean audio
    for row in range(3):
        times = float(rate[row]) * middles[:student_frames]
        for d in range(2):
            expected = np.interp(times, middles, features[row, :, d])
            np.testing.assert_allclose(aligned[row, :, d], expected, atol=1e-5)
    with_one_frame = align_features(features[:, :1], drawn, 1)
    torch.testing.assert_close(with_one_frame, features[:, :1])


def test_the_equalizer_has_the_drawn_gain_at_its_control_points() -> None:
    """Eight tones at equal distances on the mel scale, each at the gain of its control point."""
    bins, samples = 4001, 8000
    top = np.log1p(8000 / 700)
    places = [round(700 * np.expm1(top * k / 7) / 2) for k in range(8)]  # bins of 2 Hz
    gains = torch.tensor([[3.0], [-6.0], [0.0], [5.0], [-2.0], [6.0], [1.0], [-4.0]], dtype=torch.float64)
    spectrum = torch.zeros(1, bins, dtype=torch.complex64)
    spectrum[0, places] = 1.0
    audio = torch.fft.irfft(spectrum, n=samples)
    found = torch.fft.rfft(apply_equalizer(audio, gains)).abs()[0, places]
    np.testing.assert_allclose(20 * np.log10(found.numpy()), gains[:, 0].numpy(), atol=0.05)


def test_noise_and_mixing_are_those_of_equalized_utterances() -> None:
    clean = torch.randn(5, 2000)
    rows = draws(5, equalizer=12.0)
    equalized = apply_equalizer(clean, Draws.from_rows(rows).gains)
    torch.testing.assert_close(augment(clean, rows, None, True), augment(equalized, rows))


def test_without_noise_mixing_and_equalizer_nothing_changes() -> None:
    clean = torch.randn(4, 2000)
    torch.testing.assert_close(augment(clean, draws(4, p_noise=0.0, p_mix=0.0), None, True), clean)
