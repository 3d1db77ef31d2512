"""Untrusted audio: a bad file is refused by name, and the job continues with the others."""

import http.server
import io
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import soundfile
from calls import Ended, sjepa
from conftest import babble

from sjepa.audio.io import BadAudioError, read_audio, read_header, read_int16
from sjepa.audio.stream import stream_audio
from sjepa.config import Config
from sjepa.data import storage, waiting
from sjepa.data.build import build_index
from sjepa.data.layouts.hugging_face import class_names
from sjepa.errors import UserError
from sjepa.evaluate.superb.user_corpus import read_items
from sjepa.evaluate.upstream import load_upstream
from sjepa.train.loop import pretrain


def index(source: Path, out: Path) -> tuple[dict, str]:
    """An index of a folder, and what it refused."""
    facts = build_index([str(source)], out, layout="auto", max_seconds=15.0, cut_transcribed=False)
    return facts, (out / "refused.txt").read_text()


@pytest.fixture
def one_damaged(tmp_path: Path) -> Path:
    """A folder of sound WAVs, and an MP3 with random bytes inside that makes the decoder raise ValueError."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for number in range(4):
        soundfile.write(folder / f"{number}.wav", babble(1.3, number), 16_000)
    soundfile.write(folder / "damaged.mp3", babble(20.0, 9), 16_000, format="MP3")
    content = bytearray((folder / "damaged.mp3").read_bytes())
    rng = np.random.default_rng(1)
    for _ in range(24):
        place = int(rng.integers(0, len(content)))
        content[place:place] = rng.bytes(1500)
    (folder / "damaged.mp3").write_bytes(content)
    return folder


def test_whatever_a_decoder_raises_is_about_its_file(one_damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = one_damaged / "damaged.mp3"
    with pytest.raises(BadAudioError, match=r"damaged\.mp3: cannot be decoded"):
        read_header(file)
    for error in (TypeError("not bytes"), MemoryError(), AssertionError("an assert of the binding"), ValueError()):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(soundfile.SoundFile, "read", fail)
        for read in (read_header, read_audio, lambda path: list(stream_audio(path))):
            with pytest.raises(BadAudioError, match=r"0\.wav: cannot be decoded"):
                read(one_damaged / "0.wav")


def test_a_damaged_mp3_ends_neither_an_index_nor_a_training(
    one_damaged: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    facts, refused = index(one_damaged, tmp_path / "index")
    assert facts["files"] == 4
    assert "damaged.mp3: cannot be decoded" in refused
    run = tmp_path / "run"
    assert pretrain(micro(phase1={"steps": 1}, phase2={"steps": 1}), one_damaged, run, show=False)
    assert "damaged.mp3: cannot be decoded" in (run / "refused.txt").read_text()


@pytest.mark.parametrize(("suffix", "subtype"), [("wav", "PCM_16"), ("wav", "FLOAT"), ("flac", None), ("mp3", None)])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, suffix: str, subtype: str | None) -> None:
    whole, cut = tmp_path / f"whole.{suffix}", tmp_path / f"cut.{suffix}"
    soundfile.write(whole, babble(3.0, 0), 16_000, subtype=subtype)
    content = whole.read_bytes()
    cut.write_bytes(content[: len(content) * 9 // 10])
    assert read_header(whole).samples == 48_000
    for source in (cut, io.BytesIO(cut.read_bytes())):
        with pytest.raises(BadAudioError, match=r"cut short|cannot be decoded"):
            read_header(source, "cut")


def test_a_wav_that_was_cut_is_not_embedded(tmp_path: Path) -> None:
    path = write_float(tmp_path / "cut.wav", babble(3.0, 0))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(BadAudioError, match=r"cut\.wav: the file is cut short: its header states 1,000 more bytes"):
        list(stream_audio(path))


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_file_with_a_damaged_page_is_refused(tmp_path: Path, subtype: str) -> None:
    path = tmp_path / "damaged.ogg"
    soundfile.write(path, np.tile(babble(3.0, 0), 4), 16_000, format="OGG", subtype=subtype)
    for read in (read_audio, read_int16):
        assert len(read(path)) == 12 * 16_000
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 300] = bytes(300)
    path.write_bytes(content)
    for read in (read_audio, read_int16):
        with pytest.raises(BadAudioError, match=r"damaged\.ogg: the file is damaged: only 1\d\d,\d{3} of its 192,000"):
            read(path)


def test_files_that_do_not_state_their_length_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    pipe, ogg = tmp_path / "pipe.wav", tmp_path / "cut.ogg"
    for path in (pipe, ogg):
        soundfile.write(path, babble(3.0, 0), 16_000)
    content = bytearray(pipe.read_bytes())
    content[40:44] = b"\xff\xff\xff\xff"  # the size of the samples
    pipe.write_bytes(content)
    assert read_header(pipe).samples == 48_000
    content[40:44] = len(content).to_bytes(4, "little")  # the header counted too
    pipe.write_bytes(content)
    assert read_header(pipe).samples == 48_000
    ogg.write_bytes(ogg.read_bytes()[:-100])
    assert 0 < read_header(ogg).samples < 48_000


@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_a_rounded_duration_is_accepted_and_a_file_that_ends_early_is_named(tmp_path: Path, rate: int) -> None:
    rows = []
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", babble(3.0, number)[:rate], rate)  # one second
        rows.append({"path": f"{number}.wav", "dur": 1.05, "spk": f"s{number % 2}"})
    assert len(read_int16(tmp_path / "0.wav", samples=16_016)) == 16_000
    manifest = tmp_path / "manifest.jsonl"

    def probe() -> Ended:
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return sjepa("probe", "--encoder", "mfcc", "--data", manifest, "--out", tmp_path / "out")

    assert probe().status == 0
    rows[2]["dur"] = 1.15
    status, output, _ = probe()
    assert status == 2
    assert re.search(r"2\.wav: \S+ ends at 1\.15 s, but the recording ends at 1\.00 s", output)
    assert "repair this file or remove it from the corpus" in output


def write_float(path: Path, samples: np.ndarray, rate: int = 16_000) -> Path:
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, samples.astype(np.float32), rate, subtype="FLOAT")
    return path


def test_audio_far_beyond_full_scale_is_refused_and_not_embedded_as_nan(finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    for name, seconds in (("short", 1.0), ("long", 31.0)):
        write_float(folder / f"{name}.wav", 1e30 * babble(seconds, 0))
    status, output, _ = sjepa("embed", folder, "--encoder", finished_run, "--out", tmp_path / "none")
    assert status == 2
    assert "nothing could be embedded" in output
    write_float(folder / "sound.wav", babble(1.0, 1))
    status, _, printed = sjepa("embed", folder, "--encoder", finished_run, "--out", tmp_path / "features")
    assert status == 0
    assert "2 left out" in printed
    assert "far beyond full scale" in (tmp_path / "features" / "_refused.txt").read_text()
    assert [path.name for path in (tmp_path / "features").glob("*.npz")] == ["sound.wav.npz"]


def test_weights_that_are_not_numbers_are_refused_when_they_are_read(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run / "encoder", tmp_path / "encoder")
    file = tmp_path / "encoder" / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights["encoder.layer_norm.weight"][0] = float("nan")
    safetensors.torch.save_file(weights, file)
    audio = write_float(tmp_path / "audio" / "a.wav", babble(1.0, 0))
    status, output, _ = sjepa("embed", audio, "--encoder", tmp_path / "encoder", "--out", tmp_path / "out")
    assert status == 2
    assert "weights that are not finite numbers: encoder.layer_norm.weight" in output
    weights["encoder.layer_norm.weight"][:] = 3e38  # each is a number, and what comes of them is not
    safetensors.torch.save_file(weights, file)
    status, output, _ = sjepa("embed", audio, "--encoder", tmp_path / "encoder", "--out", tmp_path / "out")
    assert status == 2
    assert "a.wav: the encoder's features are not finite numbers" in output
    status, output, _ = sjepa("embed", audio, "--live", "--encoder", tmp_path / "encoder", "--out", "-")
    assert status == 2
    assert "the encoder's features are not finite numbers" in output
    assert "Traceback" not in output
    with pytest.raises(UserError, match="its features are not finite"):
        load_upstream(str(tmp_path / "encoder")).extract([babble(1.0, 0)])


@pytest.mark.parametrize("temperature", ["nan", "inf", "-1", "0", "1e-300", "1e300"])
def test_a_temperature_that_cannot_be_trained_with_is_refused(temperature: str) -> None:
    status, output, _ = sjepa("config", "--preset", "tiny", "--phase1.temperature", temperature)
    assert status == 2
    assert "phase1.temperature" in output


def test_a_pipe_is_not_waited_for(finished_run: Path, tmp_path: Path, micro: Callable[..., Config]) -> None:
    folder = tmp_path / "audio"
    write_float(folder / "a.wav", babble(1.3, 0))
    write_float(folder / "b.wav", babble(1.3, 1))
    os.mkfifo(folder / "pipe.wav")
    (folder / "zero.wav").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.wav"))
    (folder / "84-1.trans.txt").symlink_to("/dev/zero")
    facts, refused = index(folder, tmp_path / "index")
    assert facts["files"] == 2
    assert refused.count("not a regular file") == 3
    assert sjepa("embed", folder, "--encoder", finished_run, "--out", tmp_path / "features")[0] == 0
    status, output, _ = sjepa("embed", folder / "pipe.wav", "--encoder", finished_run, "--out", tmp_path / "more")
    assert (status, "pipe.wav: not a regular file" in output) == (2, True)
    assert pretrain(micro(phase1={"steps": 1}, phase2={"steps": 1}), folder, tmp_path / "run", show=False)
    os.mkfifo(tmp_path / "list.jsonl")
    status, output, _ = sjepa("index", tmp_path / "list.jsonl", "--out", tmp_path / "another")
    assert (status, "neither a regular file nor a folder" in output) == (2, True)


def test_rates_of_no_recording_and_long_nan_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    for rate in (1, 8, 50, 999):
        write_float(folder / f"{rate}.wav", babble(1.0, rate), rate)
    write_float(folder / "nan.wav", np.where(np.arange(320_000) == 5, np.nan, babble(20.0, 0)))
    write_float(folder / "slow.wav", babble(1.0, 0), 1_000)
    facts, refused = index(folder, tmp_path / "index")
    assert facts["files"] == 1
    assert refused.count("the sampling rate is") == 4
    assert "nan.wav: some samples are not finite" in refused


HOSTILE = {
    "ftp://host/a.wav": "only http, https, s3 and local paths are read",
    "file:///etc/passwd": "only http, https, s3 and local paths are read",
    "simplecache::http://host/a.wav": "only http, https, s3 and local paths are read",
    "nothing://x": "only http, https, s3 and local paths are read",
    "http://[::1/a.wav": "cannot be opened: not a URL",
    "a\0.wav": "",
    "\ud800.wav": "",
    "x" * 5000 + ".wav": "",
}


def test_a_bad_line_of_a_list_is_refused_and_the_rest_is_read(tmp_path: Path) -> None:
    write_float(tmp_path / "good.wav", babble(2.0, 0))
    lines = [json.dumps({"audio_filepath": "good.wav"})]
    lines += [json.dumps({"audio_filepath": path}) for path in HOSTILE]
    lines += [
        f'{{"audio_filepath": "good.wav", "duration": {number}}}' for number in ("1" + "0" * 400, "1e400", "1e305")
    ]
    lines += [f'{{"audio_filepath": "good.wav", "offset": {number}}}' for number in ("1" + "0" * 400, "NaN", "-1")]
    lines += [
        "[" * 200_000 + "]" * 200_000,
        '{"a":' * 200_000,
        '{"audio_filepath": "good.wav", "shard_id": "' + "9" * 999 + '"}',
    ]
    lines += ['{"audio_filepath": "good.wav", "id": "last\\ud800", "text": "\\udfff"}']
    (tmp_path / "list.jsonl").write_text("\n".join(lines) + "\n")
    facts, refused = index(tmp_path / "list.jsonl", tmp_path / "index")
    assert facts["utterances"] == 2
    assert len(refused.splitlines()) == len(lines) - 2
    for reason in HOSTILE.values():
        assert reason in refused
    rows = ["path,id,text", f"good.wav,long,{'x' * 200_000}", "good.wav,short,a", "good\0.wav,zero,b"]
    (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
    facts, refused = index(tmp_path / "list.csv", tmp_path / "of-csv")
    assert facts["utterances"] == 1
    assert "line 2: not valid CSV (field larger than field limit" in refused


RECORDING = {"id": "r", "sources": [{"type": "file", "source": "a.wav", "channels": [0]}], "sampling_rate": 16000}
CUT = {"id": "c", "type": "MonoCut", "start": 0.0, "duration": 1.0, "recording": RECORDING, "supervisions": []}
BAD_CUTS = [
    {"supervisions": "x"},
    {"supervisions": [3]},
    {"supervisions": [3, 4]},
    {"start": 10**400},
    {"start": "nan"},
    {"duration": "inf"},
    {"recording": RECORDING | {"sources": 3}},
    {"recording": RECORDING | {"sources": [None]}},
    {"recording": RECORDING | {"sources": [{"type": "file", "source": "a.wav", "channels": [0, "a"]}]}},
]


def test_a_bad_line_of_a_lhotse_manifest_is_refused_and_the_rest_is_read(tmp_path: Path) -> None:
    write_float(tmp_path / "a.wav", babble(2.0, 0))
    lines = [json.dumps(CUT | changed) for changed in BAD_CUTS]
    (tmp_path / "cuts.jsonl").write_text("\n".join([*lines, json.dumps(CUT)]) + "\n")
    facts, refused = index(tmp_path / "cuts.jsonl", tmp_path / "index")
    assert facts["utterances"] == 1
    assert len(refused.splitlines()) == len(BAD_CUTS)
    assert len(read_items(tmp_path / "cuts.jsonl")) == 1


def test_labels_nested_without_end_are_left_out(tmp_path: Path) -> None:
    write_float(tmp_path / "a.wav", babble(2.0, 0))
    (tmp_path / "list.jsonl").write_text(json.dumps({"path": "a.wav", "labels": '{"a":' * 50_000}) + "\n")
    assert index(tmp_path / "list.jsonl", tmp_path / "index")[0]["utterances"] == 1


@pytest.mark.parametrize(
    "info", ["[" * 100_000, '{"features": 3}', '{"features": {"mood": {"_type": "ClassLabel", "names": 3}}}']
)
def test_class_names_of_other_values_are_left_out(tmp_path: Path, info: str) -> None:
    (tmp_path / "dataset_info.json").write_text(info)
    assert class_names(pa.schema([]), str(tmp_path / "data-00000-of-00001.arrow")) == {}


def test_voice_activity_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    for name, voice in {
        "nan": "[[NaN, 1]]",
        "huge": f"[[0, {10**400}]]",
        "deep": "[" * 200_000,
        "good": "[[0, 1]]",
    }.items():
        write_float(tmp_path / "audio" / f"{name}.wav", babble(2.0, 0))
        (tmp_path / "audio" / f"{name}.json").write_text(f'{{"voice_activity": {voice}}}')
    facts, refused = index(tmp_path / "audio", tmp_path / "index")
    assert facts["files"] == 1
    assert len(refused.splitlines()) == 3


class Redirect(http.server.BaseHTTPRequestHandler):
    """A server that sends every reader elsewhere."""

    where = "file:///etc/passwd"

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.where)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://localhost/x"])
def test_redirects_stay_on_http(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(Redirect, "where", where)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BadAudioError, match="cannot be read"):
            storage.read_bytes(storage.ByteRange(f"http://127.0.0.1:{server.server_port}/a.wav"))
        server.shutdown()


def test_a_flag_allows_more_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(storage.ALLOWED, "")
    audio = write_float(tmp_path / "a.wav", babble(2.0, 0))
    (tmp_path / "list.jsonl").write_text(json.dumps({"audio_filepath": f"file://{audio}"}))
    call = ("index", tmp_path / "list.jsonl", "--out", tmp_path / "index")
    status, output, _ = sjepa(*call)
    assert (status, "--allow-protocols adds others" in output) == (2, True)
    assert sjepa(*call, "--allow-protocols", "file,gs")[0] == 0


def test_every_link_of_a_chain_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(storage.ALLOWED, "zip")
    for url in ("zip://a.wav::http://host/b.zip", "zip://a.wav::/data/b.zip", "http://[::1]/a.wav"):
        storage.check_protocol(url)
    for url in ("zip://a.wav::ftp://host/b.zip", "zip://a::simplecache::http://b", "http://host/a::file:///etc/passwd"):
        with pytest.raises(BadAudioError, match="--allow-protocols adds others"):
            storage.check_protocol(url)


def test_embedding_that_was_stopped_ends_with_the_same_bits(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    out, call = tmp_path / "out", ("embed", corpus, "--encoder", finished_run, "--out", tmp_path / "out")
    assert sjepa(*call).status == 0
    whole = {path.name: dict(np.load(path)) for path in out.glob("*.npz")}
    for path in sorted(out.glob("*.npz"))[::3]:
        path.unlink()
    assert sjepa(*call).status == 0
    for path in out.glob("*.npz"):
        again = np.load(path)
        assert all(np.array_equal(again[name], values) for name, values in whole[path.name].items())
