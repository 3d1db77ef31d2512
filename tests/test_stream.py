"""Streaming: chunks against a window-by-window computation in plain convolutions, and against the whole recording."""

import fcntl
import io
import json
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from conftest import babble
from hypothesis import given, settings
from hypothesis import strategies as st

from sjepa import Encoder, EncoderConfig, UserError
from sjepa.audio.frames import frame_count, sample_count
from sjepa.cli import dispatch
from sjepa.embed.live import read_pcm
from sjepa.model.encoder_config import STRIDES
from sjepa.model.stream_config import StreamConfig


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    made = Encoder(EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)).eval()
    norm = made.feature_extractor.conv_layers[0].layer_norm
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    return made.requires_grad_(False)


@pytest.fixture(scope="module")
def recording() -> np.ndarray:
    return np.concatenate([babble(2.0, 0), 0.1 * babble(2.1, 1)])


def front_end(encoder: Encoder, samples: np.ndarray, received: np.ndarray) -> torch.Tensor:
    """Features (1, T, C) by plain convolutions, with the first norm's statistics over all audio so far."""
    x = torch.from_numpy(samples)[None, None]
    for index, layer in enumerate(encoder.feature_extractor.conv_layers):
        if index == 0:
            over = F.conv1d(torch.from_numpy(received)[None, None], layer.conv.weight, stride=5)
            mean, variance = over.mean(2, keepdim=True), over.var(2, unbiased=False, keepdim=True)
            x = (F.conv1d(x, layer.conv.weight, stride=5) - mean) / torch.sqrt(variance + layer.layer_norm.eps)
            x = x * layer.layer_norm.weight[:, None] + layer.layer_norm.bias[:, None]
        else:
            x = F.conv1d(x, layer.conv.weight, stride=STRIDES[index])
        x = F.gelu(x)
    return x.transpose(1, 2)


def by_windows(encoder: Encoder, samples: np.ndarray, chunk: int, ahead: int, context: int) -> torch.Tensor:
    """Every chunk from its own window, as the documentation says it."""
    total, done, convolved, out = frame_count(len(samples)), 0, torch.zeros(1, 0, 16), []
    while done < total:
        end = done + chunk + ahead
        last = sample_count(end) > len(samples)
        count, end = (total - done, total) if last else (chunk, end)
        received = samples if last else samples[: sample_count(end)]
        start = convolved.shape[1]
        if end > start:
            new = samples[320 * start : sample_count(end)]
            convolved = torch.cat([convolved, front_end(encoder, new, received)], dim=1)
        first = max(0, done - context)
        states = encoder.transform(convolved[:, first:end]).last[0]
        out.append(states[done - first : done - first + count])
        done += count
    return torch.cat(out)


@pytest.mark.parametrize(("chunk", "ahead", "context"), [(0.5, 0.3, 1.0), (0.02, 0.0, 0.0), (1.0, 0.5, 60.0)])
def test_chunks_are_those_of_their_windows(
    chunk: float, ahead: float, context: float, encoder: Encoder, recording: np.ndarray
) -> None:
    samples = recording[:20_000] if chunk < 0.1 else recording
    stream = encoder.stream(chunk, ahead, context)
    found = torch.cat(list(stream.feed(np.array_split(samples, 37))))
    assert len(found) == frame_count(len(samples))
    wanted = by_windows(encoder, samples, *(round(50 * seconds) for seconds in (chunk, ahead, context)))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_look_ahead_over_the_recording_gives_the_encoders_own_features(
    layer: int, encoder: Encoder, recording: np.ndarray
) -> None:
    stream = encoder.stream(look_ahead=5.0, layer=layer)
    early = stream.push(recording)
    assert early.shape == (0, 32)
    whole = encoder(torch.from_numpy(recording)[None]).hidden_states[layer + 1][0]
    torch.testing.assert_close(stream.finish(), whole, atol=2e-5, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 30_000), max_size=6), end=st.integers(0, 30_000))
def test_frames_do_not_depend_on_the_blocks_in_which_audio_arrives(cuts: list[int], end: int) -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(16, 1, 2, 32, conv_channels=8, position_kernel=8, position_groups=2)).eval()
    samples = babble(2.0, 0)[:end]
    whole, parts = (
        torch.cat(list(encoder.stream(0.3, 0.2, 0.5).feed(blocks)))
        for blocks in ([samples], np.split(samples, sorted(cuts)))
    )
    assert len(whole) == frame_count(end)
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)


def test_a_stream_may_end_where_its_look_ahead_ends(encoder: Encoder, recording: np.ndarray) -> None:
    samples = recording[: sample_count(35)]
    found = torch.cat(list(encoder.stream(0.5, 0.2, 1.0).feed([samples])))
    torch.testing.assert_close(found, by_windows(encoder, samples, 25, 10, 50), atol=1e-4, rtol=1e-3)


def test_a_longer_look_ahead_is_closer_to_the_whole_recording(encoder: Encoder, recording: np.ndarray) -> None:
    whole = encoder(torch.from_numpy(recording)[None]).last[0]
    errors = [
        float((torch.cat(list(encoder.stream(0.2, ahead, 5.0).feed([recording]))) - whole).norm())
        for ahead in (0.0, 0.2, 1.0, 5.0)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


def test_a_frame_comes_out_when_its_latency_has_passed(encoder: Encoder, recording: np.ndarray) -> None:
    config = StreamConfig(0.4, 0.2)
    stream = encoder.stream(config.chunk, config.look_ahead)
    assert config.latency == pytest.approx(0.6)
    needed = round(16_000 * config.latency) + 80  # a frame sees 80 samples beyond its 20 ms
    assert len(stream.push(recording[: needed - 1])) == 0
    assert len(stream.push(recording[needed - 1 : needed])) == 20


def test_half_precision_encoders_stream(encoder: Encoder, recording: np.ndarray) -> None:
    import copy

    half = copy.deepcopy(encoder).half()
    ours, wanted = (torch.cat(list(e.stream().feed([recording]))).float() for e in (half, encoder))
    assert float((ours - wanted).norm() / wanted.norm()) < 5e-3


def test_samples_do_not_depend_on_how_many_bytes_arrive_at_once(recording: np.ndarray) -> None:
    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 101))

    sent = (recording[:3000] * 32767).astype("<i2")
    received = np.concatenate(list(read_pcm(Pipe(sent.tobytes() + b"\0"))))  # with half a sample at the end
    assert np.array_equal(received, sent.astype(np.float32) / 32768)


@pytest.mark.parametrize("what", ["features", "units"])
def test_embed_live_prints_rows_as_they_come(
    what: str,
    finished_run: Path,
    recording: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pcm = (32767 * recording).astype("<i2")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(pcm.tobytes() + b"\0")))
    call = ["embed", "-", "--live", "--encoder", str(finished_run), "--out", "-", "--what", what]
    dispatch([*call, "--stream.chunk", "0.5", "--stream.look-ahead", "0.2", "--stream.context", "2"])
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    samples = pcm.astype(np.float32) / 32768
    assert len(rows) == frame_count(len(samples))
    assert "Latency: at most 0.70 s" in printed.err
    assert "of real time" in printed.err
    encoder = Encoder.from_pretrained(finished_run)
    wanted = torch.cat(list(encoder.stream(0.5, 0.2, 2.0).feed([samples])))
    np.testing.assert_allclose([row["time"] for row in rows], (320 * np.arange(len(rows)) + 200) / 16_000)
    if what == "units":
        assert [row["units"] for row in rows] == encoder.clusters.head_posteriors(wanted).argmax(-1).tolist()
    else:
        np.testing.assert_allclose([row["features"] for row in rows], wanted, atol=1e-4)


def test_embed_live_takes_a_file_as_if_it_were_live(
    finished_run: Path, recording: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "talk.wav", recording, 16_000, subtype="FLOAT")
    call = ["embed", str(tmp_path / "talk.wav"), "--live", "--encoder", str(finished_run), "--out", str(tmp_path / "o")]
    dispatch([*call, "--layer", "all"])
    found = np.load(tmp_path / "o" / "talk.wav.npz")
    wanted = torch.cat(list(Encoder.from_pretrained(finished_run).stream(layer=0).feed([recording])))
    np.testing.assert_allclose(found["features_0"], wanted, atol=1e-4)
    with pytest.raises(UserError, match=r"talk\.wav\.npz exists"):
        dispatch(call)
    for words, changed in (
        ("takes one file", ["embed", "b.wav", *call[1:]]),
        ("there is no file", ["embed", "b.wav", *call[2:], "--layer", "all"]),
    ):
        with pytest.raises(UserError, match=words):
            dispatch([*changed, "--force"])
    with pytest.raises(UserError, match=r"stream\.chunk"):
        dispatch([*call, "--stream.chunk", "0"])


def test_the_mean_of_a_stream_without_a_frame_is_not_printed(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(bytes(2 * 399))))
    with pytest.raises(UserError, match=r"--live: 399 samples are too few: a frame needs 400"):
        dispatch(["embed", "-", "--live", "--encoder", str(finished_run), "--out", "-", "--pool", "mean"])
    assert capsys.readouterr().out == ""


def test_standard_output_without_live_is_refused(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--out - needs --live"):
        dispatch(["embed", "talk.wav", "--encoder", str(finished_run), "--out", "-"])
    assert not list(tmp_path.iterdir())


def test_embed_live_answers_before_the_stream_ends(finished_run: Path, recording: np.ndarray) -> None:
    call = [sys.executable, "-m", "sjepa", "embed", "-", "--live", "--encoder", str(finished_run), "--out", "-"]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write((32767 * recording[:32_000]).astype("<i2").tobytes())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["time"] == pytest.approx(200 / 16_000)  # and the input is open
        process.stdin.close()
        assert len(process.stdout.readlines()) + 1 == frame_count(32_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_live_stream_and_keeps_its_output(
    number: signal.Signals, finished_run: Path, recording: np.ndarray, tmp_path: Path
) -> None:
    call = [sys.executable, "-m", "sjepa", "embed", "-", "--live", "--encoder", str(finished_run), "--out", "o"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    sent = (32767 * recording).astype("<i2").tobytes()[: 2 * 320 * 150]  # whole blocks
    with subprocess.Popen(call, cwd=tmp_path, **pipes) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(sent)
        process.stdin.flush()
        while b"Latency" not in process.stderr.readline():
            pass
        wait_until_read(process.stdin)
        process.send_signal(number)  # and the input is open
        printed = process.communicate(timeout=60)
    rows = frame_count(320 * 150)
    assert f"Wrote {rows} rows of features" in printed[0].decode()
    assert f"sjepa: {number.name}: stopp" in printed[1].decode()
    assert process.returncode == 0
    assert len(np.load(tmp_path / "o" / "stdin.npz")["features"]) == rows


def wait_until_read(pipe: IO[bytes]) -> None:
    """Wait until the other end of a pipe has read everything, and a little longer."""
    while int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
        time.sleep(0.01)
    time.sleep(0.2)
