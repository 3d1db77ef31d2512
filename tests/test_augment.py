"""Noise and mixing at exactly the drawn levels, and nowhere else."""

import numpy as np
import torch

from sjepa.audio.augment import AugmentConfig, Draws, add_noise, augment, draw, mix_utterances


def draws(batch: int, seed: int = 0, **settings: float) -> torch.Tensor:
    generators = [np.random.default_rng((seed, i)) for i in range(batch)]
    return draw(generators, AugmentConfig(**{"p_noise": 1.0, "p_mix": 1.0, **settings}))


def test_noise_is_added_at_the_drawn_signal_to_noise_ratio() -> None:
    clean = torch.randn(8, 4000) * torch.rand(8, 1)
    recording = (torch.randn(50_000) * 3000).to(torch.int16)
    for noise in (None, recording):
        d = Draws.from_rows(draws(8))
        added = add_noise(clean, d, noise) - clean
        ratio = 10 * torch.log10(clean.square().mean(1) / added.square().mean(1))
        np.testing.assert_allclose(ratio.numpy(), d.noise_snr.numpy(), atol=1e-2)
        assert d.noise_snr.min() >= -5
        assert d.noise_snr.max() <= 20


def test_without_recordings_the_noise_is_another_utterance() -> None:
    clean = torch.randn(5, 3000)
    added = add_noise(clean, Draws.from_rows(draws(5)), None) - clean
    for row in range(5):
        similarity = torch.cosine_similarity(added[row : row + 1], clean)
        assert similarity.argmax() != row
        assert similarity.max() > 0.999


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


def test_silence_and_a_batch_of_one_are_harmless() -> None:
    out = augment(torch.zeros(3, 1000), draws(3))
    assert torch.isfinite(out).all()
    assert torch.equal(augment(torch.ones(1, 1000), draws(1, p_noise=0.0)), torch.ones(1, 1000))
