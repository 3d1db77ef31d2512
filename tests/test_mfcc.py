"""MFCC against kaldi-native-fbank, and deltas against a slow implementation of Kaldi's definition."""

import kaldi_native_fbank as knf
import numpy as np
import pytest
import torch
from conftest import babble

from sjepa.audio.frames import frame_count, frame_slice, sample_count
from sjepa.audio.mfcc import MfccConfig, add_deltas, log_mel, mfcc
from sjepa.targets.features import RandomProjection


def kaldi_mfcc(samples: np.ndarray, shift_ms: float) -> np.ndarray:
    options = knf.MfccOptions()
    options.frame_opts.samp_freq, options.frame_opts.frame_length_ms = 16_000, 25
    options.frame_opts.frame_shift_ms, options.frame_opts.dither = shift_ms, 0
    options.frame_opts.snip_edges, options.frame_opts.window_type = True, "povey"
    options.mel_opts.num_bins, options.mel_opts.low_freq = 23, 20
    options.num_ceps, options.use_energy, options.cepstral_lifter = 13, False, 22
    extractor = knf.OnlineMfcc(options)
    extractor.accept_waveform(16_000, (samples * 32768).tolist())
    extractor.input_finished()
    return np.stack([extractor.get_frame(i) for i in range(extractor.num_frames_ready)])


@pytest.mark.parametrize("shift_ms", [20, 10])
def test_cepstra_equal_kaldis(shift_ms: int) -> None:
    for seed in range(3):
        samples = babble(1.7, seed) if seed else np.random.default_rng(0).normal(size=20_000).astype(np.float32) * 0.1
        ours = mfcc(torch.from_numpy(samples)[None], MfccConfig(shift_ms=shift_ms))[0, :, :13].numpy()
        theirs = kaldi_mfcc(samples, shift_ms)[:: 20 // shift_ms]
        np.testing.assert_allclose(ours, theirs, atol=5e-3, rtol=1e-4)


def test_deltas_are_kaldis_regression_over_two_frames_with_edges_repeated() -> None:
    features = torch.randn(2, 15, 3, dtype=torch.float64)
    first = np.arange(-2, 3) / 10
    filters = [np.array([1.0]), first, np.convolve(first, first)]
    for batch in range(2):
        for t in range(15):
            for d in range(3):
                for order, taps in enumerate(filters):
                    reach = len(taps) // 2
                    steps = range(-reach, reach + 1)
                    value = sum(taps[s + reach] * features[batch, min(max(t + s, 0), 14), d] for s in steps)
                    ours = add_deltas(features.float())[batch, t, 3 * order + d]
                    assert float(ours) == pytest.approx(float(value), abs=1e-5)


@pytest.mark.parametrize("shift_ms", [20, 10])
def test_frame_count_equals_the_encoders_for_every_length(shift_ms: int) -> None:
    waveform = torch.randn(1, 4000)
    for samples in range(400, 4000, 1 if shift_ms == 20 else 7):
        frames = mfcc(waveform[:, :samples], MfccConfig(shift_ms=shift_ms)).shape[1]
        assert frames == frame_count(samples), samples


def test_frames_are_computed_from_exactly_the_samples_they_cover() -> None:
    waveform = torch.randn(1, 8000, generator=torch.Generator().manual_seed(0))
    frames = log_mel(waveform, 23, 320)
    for first, last in ((0, 1), (0, 24), (3, 9), (23, 24)):
        samples = waveform[:, frame_slice(first, last)]
        assert samples.shape[1] == sample_count(last - first)
        torch.testing.assert_close(log_mel(samples, 23, 320), frames[:, first:last])
    assert (frame_count(0), frame_count(399), frame_count(400)) == (0, 0, 1)


def test_silence_gives_finite_features() -> None:
    assert torch.isfinite(mfcc(torch.zeros(1, 16_000), MfccConfig())).all()


def test_targets_features_stay_in_fp32_where_the_network_is_in_bf16() -> None:
    waveforms = torch.from_numpy(babble(1.0, 1))[None]
    plain = mfcc(waveforms, MfccConfig())
    projection = RandomProjection(0)
    expected = projection(waveforms, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mfcc(waveforms, MfccConfig()), plain)
        assert torch.equal(projection(waveforms, None), expected)
