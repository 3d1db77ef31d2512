"""`sjepa embed`: features of the plain encoder, shared by ranks, in bounded memory, and refusals."""

import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import safetensors.numpy
import soundfile
import torch
from conftest import babble
from processes import start_ranks
from test_cli import sjepa

from sjepa import Encoder, UserError
from sjepa.audio.frames import frame_count
from sjepa.audio.io import read_audio
from sjepa.cli import dispatch
from sjepa.embed import recordings
from sjepa.embed.network import Network
from sjepa.model.formats import save_folder, to_hugging_face
from sjepa.runs.checkpoint import load_latest
from sjepa.runs.folder import RunFolder


def run_embed(*arguments: object) -> None:
    dispatch(["embed", *map(str, arguments)])


def refused(words: str, *arguments: object) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        run_embed(*arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("layer", ["last", "0", "input"])
def test_features_of_any_layer_are_the_encoders(layer: str, finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    run_embed(corpus, "--encoder", finished_run, "--out", tmp_path, "--layer", layer)
    encoder = Encoder.from_pretrained(finished_run)
    state = {"last": 2, "0": 1, "input": 0}[layer]
    files = sorted(corpus.glob("*.wav"))
    for file in files:
        found = np.load(tmp_path / f"{file.name}.npz")
        with torch.no_grad():
            wanted = encoder(torch.from_numpy(read_audio(file))[None]).hidden_states[state][0].numpy()
        np.testing.assert_allclose(found["features"], wanted, atol=2e-5, rtol=1e-4)
        np.testing.assert_allclose(found["time"], (320 * np.arange(len(wanted)) + 200) / 16_000)
    assert len(list(tmp_path.glob("*.npz"))) == len(files)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet"])
def test_all_layers_come_in_a_column_each(kind: str, finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    folder.mkdir()
    soundfile.write(folder / "long.wav", babble(9.0, 0), 16_000)
    soundfile.write(folder / "short.wav", babble(1.0, 1), 16_000)
    window = ("--window.seconds", 8, "--window.overlap", 4, "--format", kind)
    run_embed(folder, "--encoder", finished_run, "--out", tmp_path / "all", "--layer", "all", *window)
    run_embed(folder, "--encoder", finished_run, "--out", tmp_path / "m", "--layer", "all", "--pool", "mean", *window)
    for layer in ("input", "0", "1"):
        run_embed(folder, "--encoder", finished_run, "--out", tmp_path / layer, "--layer", layer, *window)
        for name in ("long.wav", "short.wav"):
            one, every, mean = (read_columns(tmp_path / place / f"{name}.{kind}") for place in (layer, "all", "m"))
            assert set(every) - {"about", "file"} == {"time", "features_input", "features_0", "features_1"}
            np.testing.assert_allclose(every[f"features_{layer}"], one["features"], atol=1e-5)
            np.testing.assert_allclose(mean[f"features_{layer}"][0], one["features"].mean(0), atol=1e-5)


def read_columns(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".parquet":
        return {name: np.array(values) for name, values in pyarrow.parquet.read_table(path).to_pydict().items()}
    return dict(np.load(path)) if path.suffix == ".npz" else safetensors.numpy.load_file(path)


def test_ranks_share_the_files_and_write_each_once(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    shutil.copytree(corpus, folder)
    for number in range(3):
        soundfile.write(folder / f"long {number}.wav", babble(9.0 + number, number), 16_000)
    (folder / "words.wav").write_text("these are words")
    options = ("--encoder", finished_run, "--batch-seconds", 3, "--window.seconds", 8, "--window.overlap", 4)
    run_embed(folder, *options, "--out", tmp_path / "alone")
    call = [str(part) for part in ("embed", folder, *options, "--out", tmp_path / "shared")]
    ranks = start_ranks(call, tmp_path / "output.txt", 2, before=print_writes)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].text
    assert "15 recordings" in ranks[0].text
    written = [
        [line.removeprefix("wrote ") for line in rank.text.splitlines() if line.startswith("wrote ")] for rank in ranks
    ]
    assert all(written)
    assert sorted(written[0] + written[1]) == sorted(path.name for path in (tmp_path / "alone").glob("*.npz"))
    for path in (tmp_path / "alone").glob("*.npz"):
        one, other = (np.load(place / path.name)["features"] for place in (path.parent, tmp_path / "shared"))
        np.testing.assert_array_equal(one, other)
    assert "words.wav" in (tmp_path / "shared" / "_refused.txt").read_text()


def print_writes() -> None:
    """Let this process print the name of every file that it writes."""
    write = recordings.write_table

    def tell(path: Path, *rest: Any) -> int:
        print("\nwrote", path.name, flush=True)  # after a progress bar
        return write(path, *rest)

    recordings.write_table = tell


def test_posteriors_units_and_means_agree_with_each_other_and_with_the_runs_head(
    finished_run: Path, corpus: Path, tmp_path: Path
) -> None:
    file = min(corpus.glob("*.wav"))
    common = (file, "--encoder", finished_run, "--format", "safetensors", "--out")
    run_embed(*common, tmp_path / "p", "--what", "head")
    run_embed(*common, tmp_path / "u", "--what", "units")
    run_embed(*common, tmp_path / "m", "--what", "head", "--pool", "mean")
    posteriors, units, means = (
        safetensors.numpy.load_file(tmp_path / x / f"{file.name}.safetensors") for x in ("p", "u", "m")
    )
    checkpoint = load_latest(RunFolder(finished_run))
    assert checkpoint is not None
    weights = {n.removeprefix("head."): t for n, t in checkpoint[0]["model"].items() if n.startswith("head.")}
    with torch.no_grad():
        x = Encoder.from_pretrained(finished_run)(torch.from_numpy(read_audio(file))[None]).last[0]
        for part in ("layers.0", "layers.2"):
            x = torch.nn.functional.gelu(x @ weights[f"{part}.weight"].T + weights[f"{part}.bias"])
        logits = x @ weights["output.weight"].T + weights["output.bias"]
    np.testing.assert_allclose(posteriors["posteriors"], logits.softmax(1).numpy(), atol=1e-5)
    np.testing.assert_array_equal(units["units"], posteriors["posteriors"].argmax(1))
    np.testing.assert_allclose(means["posteriors"][0], posteriors["posteriors"].mean(0), atol=1e-6)
    assert means["seconds"][0] == pytest.approx(len(read_audio(file)) / 16_000, abs=0.02)


def test_a_long_recording_in_windows_has_the_frames_of_the_whole_and_names_of_its_own(
    finished_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "Aufnähmen – 録音"
    folder.mkdir()
    samples = babble(20.0, 1)
    soundfile.write(folder / "long é.wav", np.stack([samples, samples], 1), 16_000)
    soundfile.write(folder / "short.wav", samples[:16_000], 16_000)
    window = ("--window.seconds", 8, "--window.overlap", 4)
    run_embed(folder, "--encoder", finished_run, "--out", tmp_path / "öut", *window)
    assert len(np.load(tmp_path / "öut" / "long é.wav.npz")["features"]) == frame_count(len(samples))
    assert (tmp_path / "öut" / "short.wav.npz").is_file()


@pytest.mark.parametrize("stop", [None, KeyboardInterrupt, RuntimeError])
def test_threads_decode_the_next_batches_and_no_more_while_the_network_runs(
    stop: type[BaseException] | None, finished_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, encoded, ahead = [], [], threading.Event()
    read, features = recordings.read_audio, Network.features

    def decode(path: str) -> np.ndarray:
        begun.append(path)
        if len(begun) > 1:
            ahead.set()
        return read(path)

    def encode(network: Network, waveforms: Any) -> Any:
        assert ahead.wait(10)
        encoded.append(waveforms)
        assert len(begun) <= len(encoded) + recordings.AHEAD
        if stop is not None and len(encoded) == 3:
            raise stop
        return features(network, waveforms)

    monkeypatch.setattr(recordings, "read_audio", decode)
    monkeypatch.setattr(Network, "features", encode)
    arguments = (corpus, "--encoder", finished_run, "--out", tmp_path / "out", "--batch-seconds", 1)
    with nullcontext() if stop is None else pytest.raises(stop):
        run_embed(*arguments)
    assert len(encoded) == (12 if stop is None else 3)
    assert len(list((tmp_path / "out").glob("*.npz"))) == (12 if stop is None else 2)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_bad_recordings_are_named_and_the_others_embedded(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    folder.mkdir()
    soundfile.write(folder / "silent.wav", np.zeros(30_000), 16_000)
    soundfile.write(folder / "short.wav", np.ones(300) * 0.1, 16_000)
    soundfile.write(folder / "nan.wav", np.full(30_000, np.nan), 16_000, subtype="FLOAT")
    long = babble(20.0, 0).astype(np.float64)
    long[200_000] = np.nan
    soundfile.write(folder / "long-nan.wav", long, 16_000, subtype="FLOAT")
    (folder / "words.wav").write_text("these are words")
    window = ("--window.seconds", 8, "--window.overlap", 4)
    done = sjepa("embed", folder, "--encoder", finished_run, "--out", tmp_path / "out", *window)
    assert done.returncode == 0, done.stderr
    assert "silent.wav: silence" in done.stderr + done.stdout
    assert "4 left out" in done.stdout
    assert "(and 3 more)" in done.stdout  # for other reasons
    assert " from 1 recording (" in done.stdout
    again = sjepa("embed", folder, "--encoder", finished_run, "--out", tmp_path / "out", *window)
    assert "the output of 1 recording is already in" in again.stdout
    assert np.isfinite(np.load(tmp_path / "out" / "silent.wav.npz")["features"]).all()
    assert sorted(f.name for f in (tmp_path / "out").iterdir() if f.name[0] != "_") == ["silent.wav.npz"]
    reasons = (tmp_path / "out" / "_refused.txt").read_text()
    for name in ("short.wav", "nan.wav", "long-nan.wav", "words.wav"):
        assert name in reasons
        (folder / name).unlink()
    sjepa("embed", folder, "--encoder", finished_run, "--out", tmp_path / "out", *window)
    assert not (tmp_path / "out" / "_refused.txt").exists()
    (folder / "words.wav").write_text("these are words")
    refused(r"words\.wav", folder / "words.wav", "--encoder", finished_run, "--out", tmp_path / "o2")


def test_mistakes_get_one_line(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    file = min(corpus.glob("*.wav"))

    def attempt(words: str, *arguments: object, encoder: Path = finished_run) -> None:
        refused(words, *arguments, "--encoder", encoder, "--out", tmp_path / "out")

    attempt("there is no file or folder", tmp_path / "none.wav")
    attempt("layers 0 to 1", file, "--layer", 2)
    attempt("units are categories", file, "--what", "units", "--pool", "mean")
    attempt("--what units", file, "--deduplicate")
    attempt("too short", file, "--window.overlap", 1)
    without = shutil.copytree(finished_run / "encoder", tmp_path / "without")
    (without / "clusters.safetensors").unlink()
    attempt("`sjepa pretrain` makes runs", file, "--what", "units", encoder=without)
    attempt("choose --what mixture, or --what head", file, "--what", "posteriors")
    attempt("for posteriors use --what mixture", file, "--from", "mixture")
    attempt("there is no encoder", file, encoder=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    attempt("no audio in .*empty: looked for .flac, .mp3", tmp_path / "empty")
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "index.json").write_text("{}")
    attempt("index lists audio elsewhere: embed takes audio files", tmp_path / "index")
    (tmp_path / "kaldi").mkdir()
    (tmp_path / "kaldi" / "wav.scp").write_text("a ../a.wav\n")
    attempt("kaldi lists audio elsewhere: embed takes audio files", tmp_path / "kaldi")
    (tmp_path / "words").write_text("words")
    refused("words is a file: give a folder", file, "--encoder", finished_run, "--out", tmp_path / "words", "--force")
    copy = tmp_path / "other" / file.name
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    attempt("would be written to the same file", file, copy)


@pytest.mark.parametrize("encoder", ["mfcc", "logmel", "s3prl:hubert", "module:function", "untrained:run", "whisper"])
def test_encoders_that_only_evaluations_accept_are_refused_with_what_embed_accepts(
    encoder: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "encoder.safetensors").touch()
    accepts = "embed accepts sjepa's own encoders, and networks with the architecture of HuBERT Base"
    refused(
        rf"^only superb, probe, units and cost accept {encoder}: {accepts}$",
        corpus,
        "--encoder",
        encoder,
        "--out",
        "out",
    )


def test_audio_in_a_format_that_is_not_read_is_reported_with_what_to_do(
    finished_run: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    (folder / "below").mkdir(parents=True)
    for name in ("a.m4a", "below/b.M4A", "c.wma", "notes.txt"):
        (folder / name).write_bytes(b"\0\0\0\x18ftypM4A " + bytes(range(256)))
    options = ("--encoder", finished_run, "--out", tmp_path / "out")
    refused(
        r"a\.m4a: cannot be decoded \(.*\); if it is audio, convert it to wav or flac first", folder / "a.m4a", *options
    )
    others = (
        f"{folder}: 2 .m4a files, 1 .wma file cannot be read: convert to wav or flac first, for example with ffmpeg"
    )
    refused(f"no usable audio: {others}", folder, *options)
    shutil.copy(min(corpus.glob("*.wav")), folder)
    run_embed(folder, *options)
    assert (tmp_path / "out" / "_refused.txt").read_text() == f"{others}\n"
    assert capsys.readouterr().out.count(others) == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bert", r"other holds a 'bert' network: embed accepts sjepa's own encoders"),
        (
            "wavlm",
            r"other holds a 'wavlm' network, which only superb, probe, units and cost accept: embed accepts",
        ),
        ("whisper", r"'whisper' network, which only superb, probe, units and cost accept"),
        ("wav2vec2", r"'wav2vec2' network, which only superb, probe, units and cost accept"),
    ],
)
def test_another_network_is_named_with_what_takes_it(kind: str, words: str, corpus: Path, tmp_path: Path) -> None:
    weights = {f"layer.{number}.weight": torch.ones(1) for number in range(100)}
    save_folder(tmp_path / "other", weights, {"model_type": kind})
    refused(words, corpus, "--encoder", tmp_path / "other", "--out", tmp_path / "out")


def test_an_encoder_that_is_not_the_checkpoints_gets_no_units(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_bytes((finished_run / "config.toml").read_bytes())
    (run / "checkpoints").symlink_to(finished_run / "checkpoints")
    other = Encoder(Encoder.from_pretrained(finished_run).config)
    save_folder(run / "encoder", other.state_dict(), to_hugging_face(other.config))
    arguments = (corpus, "--encoder", run, "--out", tmp_path / "out", "--what", "units")
    refused("its encoder belongs to no checkpoint", *arguments)


MEASURE = """
import resource, sys
from pathlib import Path
import numpy as np, torch
torch.set_num_threads(1)
from sjepa.embed.network import Network
from sjepa.embed.readout import Readout
from sjepa.embed.recordings import Embedding, embed, find_recordings
from sjepa.embed.window_config import WindowConfig
from sjepa.runs.encoder import Encoder
network = Network(Encoder.from_pretrained(sys.argv[1]), (2,), torch.device("cpu"))
plan = Embedding(network, Readout("features", False, False), WindowConfig(), "npz", 60.0, {})
for path in sys.argv[2:]:
    recordings, _ = find_recordings([Path(path)])
    embed(recordings, Path(path).parent / "out", plan, skip=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_length_of_a_recording(finished_run: Path, tmp_path: Path) -> None:
    piece = babble(60.0, 0)
    for name, repeats in (("first.wav", 2), ("long.wav", 12)):
        with soundfile.SoundFile(tmp_path / name, "w", 16_000, 1) as file:
            for _ in range(repeats):
                file.write(piece)
    call = [sys.executable, "-c", MEASURE, finished_run, tmp_path / "first.wav", tmp_path / "long.wav"]
    done = subprocess.run([str(part) for part in call], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    short, long = (int(line) / 1024 for line in done.stdout.split())
    assert long - short < 20  # MB; the 12 minutes have 46 MB of samples
    assert len(np.load(tmp_path / "out" / "long.wav.npz")["features"]) == frame_count(720 * 16_000)
