"""Long recordings in windows, joined without a seam and close to the whole, and short recordings in batches."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from conftest import babble
from hypothesis import given, settings
from hypothesis import strategies as st

from sjepa import Encoder, EncoderConfig, UserError
from sjepa.audio.frames import frame_count, sample_count
from sjepa.audio.io import BadAudioError, read_audio
from sjepa.audio.stream import stream_audio
from sjepa.embed.network import Network
from sjepa.embed.recordings import Recording, batches_by_length
from sjepa.embed.window_config import MARGIN, WindowConfig
from sjepa.embed.windows import cut_windows, join_windows
from sjepa.evaluate.labelled import LabelledUtterance
from sjepa.evaluate.superb.records import Utterance
from sjepa.model.moments import measure_moments

ROOT = Path(__file__).parents[1]
SHORT = WindowConfig(seconds=8.0, overlap=4.0)


def test_streamed_audio_is_refused_if_its_channels_cancel(tmp_path: Path) -> None:
    voice = babble(12.0, 0)
    soundfile.write(tmp_path / "a.wav", np.stack([voice, -voice], 1), 16_000)
    for read in (read_audio, lambda path: list(stream_audio(path))):
        with pytest.raises(BadAudioError, match=r"a\.wav: its channels cancel each other"):
            read(tmp_path / "a.wav")


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2), (8_000, 1)])
def test_streamed_audio_equals_audio_that_is_read_at_once(tmp_path: Path, rate: int, channels: int) -> None:
    path = tmp_path / "a.wav"
    noise = 0.1 * np.random.default_rng(0).standard_normal((int(23.4 * rate), channels))
    soundfile.write(path, noise, rate)
    blocks = list(stream_audio(path))
    assert len(blocks) >= 2
    whole = read_audio(path)
    assert sum(map(len, blocks)) == len(whole)
    np.testing.assert_allclose(np.concatenate(blocks), whole, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(samples=st.integers(400, 1_000_000), block=st.integers(1_000, 200_000))
def test_windows_and_joins_neither_lose_nor_double_a_frame(samples: int, block: int) -> None:
    recording = np.arange(samples, dtype=np.float32) // 320  # exact in float32; frame t begins with t
    windows = list(cut_windows((recording[i : i + block] for i in range(0, samples, block)), SHORT))
    parts = []
    for window in windows:
        frames = frame_count(len(window.samples))
        assert (window.samples[: 320 * frames : 320] == np.arange(window.start, window.start + frames)).all()
        parts.append((window.start, torch.from_numpy(window.samples[: 320 * frames : 320].copy())[:, None]))
    if frame_count(samples) <= SHORT.frames:
        assert len(windows) == 1
        assert len(windows[0].samples) == samples
    else:
        assert {len(window.samples) for window in windows} == {sample_count(SHORT.frames)}
        overlaps = [SHORT.frames - (b.start - a.start) for a, b in itertools.pairwise(windows)]
        assert min(overlaps) >= SHORT.shared
    joined = torch.cat(list(join_windows(parts, SHORT)))[:, 0]
    torch.testing.assert_close(joined, torch.arange(frame_count(samples), dtype=torch.float32))


def test_a_join_fades_and_keeps_clear_of_the_edges() -> None:
    parts = [(0, torch.zeros(400, 1)), (200, torch.ones(400, 1))]
    edges = torch.full((MARGIN, 1), 99.0)  # must not be used
    parts[0][1][-MARGIN:], parts[1][1][:MARGIN] = edges, edges
    x = torch.cat(list(join_windows(parts, SHORT)))[:, 0]
    assert len(x) == 600
    assert x.min() == 0
    assert x.max() == 1
    steps = x.diff()
    assert steps.min() >= 0
    assert steps.max() <= 1 / (SHORT.shared - 2 * MARGIN)


def trained_like() -> Encoder:
    """Weights at the scale of a trained encoder, whose attention distinguishes frames."""
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(64, 3, 4, 128, conv_channels=32, position_kernel=64, position_groups=4)).eval()
    return encoder.requires_grad_(False)


def test_joined_windows_stay_close_to_the_encoder_on_the_whole_recording() -> None:
    encoder = trained_like()
    network = Network(encoder, (encoder.config.layers,), torch.device("cpu"))
    samples = np.concatenate([level * babble(8.0, i) for i, level in enumerate((1.0, 0.03, 0.3, 0.0, 1.0))])
    whole = encoder(torch.from_numpy(samples)[None]).last[0]
    windows, moments = list(cut_windows([samples], SHORT)), measure_moments([samples])
    assert len(windows) > 5
    joined = torch.cat(
        list(join_windows(((w.start, network.window_features(w.samples, moments)) for w in windows), SHORT))
    )
    assert joined.shape == whole.shape
    relative = (joined - whole).norm(dim=1) / whole.norm(dim=1)
    assert relative.median() < 0.02
    # At the joins frames change no more from one to the next than elsewhere.
    assert joined.diff(dim=0).norm(dim=1).max() < 1.1 * whole.diff(dim=0).norm(dim=1).max()


def test_the_front_end_computes_a_window_exactly_as_in_its_recording() -> None:
    encoder = trained_like()
    norm = encoder.feature_extractor.conv_layers[0].layer_norm
    norm.weight.normal_()
    norm.bias.normal_()
    samples = np.concatenate([babble(3.0, 0), 0.01 * babble(3.0, 1) + 0.1])
    blocks = [samples[i : i + 7_001] for i in range(0, len(samples), 7_001)]
    whole = encoder.feature_extractor(torch.from_numpy(samples)[None])[0]
    for start in (0, 100, 200):
        window = torch.from_numpy(samples[320 * start : 320 * start + sample_count(60)])[None]
        inside = encoder.convolve(window, moments=measure_moments(blocks))[0]
        torch.testing.assert_close(inside, whole[start : start + 60], atol=1e-4, rtol=1e-3)


def test_batches_hold_recordings_of_like_length_within_their_seconds() -> None:
    lengths = np.random.default_rng(0).integers(400, 30 * 16_000, 300)
    recordings = [Recording(str(i), str(i), int(n)) for i, n in enumerate(lengths)]
    batches = list(batches_by_length(recordings, 60.0))
    assert sorted(int(r.path) for batch in batches for r in batch) == list(range(300))
    padded = [max(r.samples for r in batch) * len(batch) for batch in batches]
    assert max(padded) <= 60 * 16_000
    assert sum(padded) < 1.1 * lengths.sum()


def test_windows_that_cannot_be_joined_are_refused() -> None:
    for seconds, overlap in ((30.0, 3.0), (9.0, 5.0)):
        with pytest.raises(UserError, match=r"window\."):
            WindowConfig(seconds, overlap)


def test_tables_of_the_page_match_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import embed_windows

    results = json.loads((ROOT / "benchmarks" / "results" / "embed-windows.json").read_text(encoding="utf-8"))
    assert WindowConfig(**results["window"]) == WindowConfig()
    page = (ROOT / "docs" / "embed.md").read_text(encoding="utf-8").splitlines()
    for table in embed_windows.make_tables(results):
        title, _, *rows = table.splitlines()
        assert {title, *rows} <= set(page)


def test_frames_of_concatenated_utterances_have_the_phones_of_their_utterance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import embed_windows

    lengths = (16_100, 8_050, 24_000)
    labels = [[f"{name}{i}" for i in range(length // 160)] for name, length in zip("abc", lengths, strict=True)]
    items = [LabelledUtterance(Utterance("", Path(), ""), phones=phones) for phones in labels]
    found = embed_windows.label_frames(items, [np.zeros(length, np.float32) for length in lengths])
    of_samples = [
        phones[min(i // 160, len(phones) - 1)] for phones, n in zip(labels, lengths, strict=True) for i in range(n)
    ]
    assert found.tolist() == [of_samples[320 * t + 200] for t in range(frame_count(sum(lengths)))]
