"""Shards: tars that any WebDataset reader accepts, read from disk or over HTTP, intact or damaged."""

import io
import json
import signal
import tarfile
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from conftest import babble
from processes import Command
from served import Serve, by_id, reader_of, shards

from sjepa import UserError
from sjepa.audio.encode import encode_audio
from sjepa.audio.io import BadAudioError
from sjepa.cli import dispatch
from sjepa.config import Config
from sjepa.data.build import build_index
from sjepa.data.index import open_index, read_labels
from sjepa.data.loader import load, plan_batches
from sjepa.data.sampler import BatchPlan
from sjepa.data.shards import WAV_HEADER, Encoding
from sjepa.train.loop import pretrain


@pytest.mark.parametrize("samples", [1, 400, 16_001])
def test_a_wav_has_the_bytes_that_python_writes(samples: int) -> None:
    """The index of a shard points behind a header of this size."""
    noise = np.random.default_rng(0).integers(-32_768, 32_768, samples).astype(np.int16)
    expected = io.BytesIO()
    with wave.open(expected, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(noise.tobytes())
    assert encode_audio(noise, "WAV") == expected.getvalue()
    assert encode_audio(noise, "WAV")[WAV_HEADER:] == noise.tobytes()


@pytest.mark.parametrize("encoding", ["flac", "int16"])
def test_shards_hold_the_samples_and_labels_of_the_index(index: Path, tmp_path: Path, encoding: Encoding) -> None:
    facts = shards(index, tmp_path / "shards", encoding)
    original, packed = by_id(str(index)), by_id(str(tmp_path / "shards"))
    assert facts["files"] == len(list((tmp_path / "shards").glob("*.tar"))) == 4
    assert original.keys() == packed.keys()
    assert all(np.array_equal(original[name], packed[name]) for name in original)
    corpus = open_index(str(tmp_path / "shards"))
    assert np.array_equal(corpus.read(5, 700, 900), corpus.read(5)[700:1600])
    key = ("id", "speaker", "text")
    known = {tuple(row[k] for k in key) for row in read_labels(str(index)).to_pylist()}
    assert {tuple(row[k] for k in key) for row in read_labels(str(tmp_path / "shards")).to_pylist()} == known


@pytest.mark.parametrize("encoding", ["flac", "int16"])
def test_any_tar_reader_finds_samples_by_key(index: Path, tmp_path: Path, encoding: Encoding) -> None:
    shards(index, tmp_path / "shards", encoding)
    original = by_id(str(index))
    corpus = open_index(str(tmp_path / "shards"))
    offsets = set()
    found = 0
    for path in sorted((tmp_path / "shards").glob("*.tar")):
        with tarfile.open(path) as tar:
            samples: dict[str, dict[str, bytes]] = {}
            for member in tar:  # as WebDataset does: neighbours with the same name up to the first dot are one sample
                key, ending = member.name.split(".", 1)
                samples.setdefault(key, {})[ending] = tar.extractfile(member).read()  # type: ignore[union-attr]
                offsets.add((path.name, member.offset_data + (44 if ending == "wav" else 0)))
        for sample in samples.values():
            labels = json.loads(sample["json"])
            audio, rate = soundfile.read(io.BytesIO(sample["flac" if encoding == "flac" else "wav"]), dtype="int16")
            assert rate == 16_000
            assert np.array_equal(audio, original[labels["id"]])
            found += 1
    assert found == 24
    assert corpus.byte_offset is not None
    for n in range(24):
        assert (Path(corpus.place(n).path).name, int(corpus.byte_offset[n])) in offsets


def slow_down() -> None:
    from sjepa.data import shards

    add = shards.add_member

    def slowly(*arguments: Any) -> int:
        time.sleep(0.1)
        return add(*arguments)

    shards.add_member = slowly  # type: ignore[assignment]


def test_a_terminated_command_prints_that_the_same_one_continues(index: Path, flac: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    call = ["shard", str(index), "--out", str(out), "--workers", "1", "--shard-hours", str(10 / 3600)]
    stopped = Command(call, tmp_path / "log", before=slow_down)
    while not any((out / "parts").glob("*-000000.arrow")):  # the first shard is complete
        assert stopped.is_running, stopped.text
        time.sleep(0.02)
    assert "Writing shards  0/24" in stopped.text  # a line at once, though this is not a terminal
    for _ in range(2):  # `timeout` repeats it
        stopped.send(signal.SIGTERM)
    assert stopped.wait(20) == 130
    assert stopped.text.endswith("sjepa: interrupted; the same command continues\n")
    assert not (out / "index.json").exists()
    first = (out / "000000.tar").stat().st_mtime_ns
    assert Command(call, tmp_path / "log").wait() == 0
    assert (out / "000000.tar").stat().st_mtime_ns == first
    assert {p.name: p.read_bytes() for p in out.glob("*.tar")} == {p.name: p.read_bytes() for p in flac.glob("*.tar")}


def test_interrupted_shards_continue(index: Path, flac: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    out.mkdir()
    shards(index, out)
    facts = (out / "index.json").read_bytes()
    tars = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob("*.tar")}
    assert {name: content for name, (_, content) in tars.items()} == {
        p.name: p.read_bytes() for p in flac.glob("*.tar")
    }
    shards(index, out)  # complete: nothing is touched
    assert (out / "index.json").read_bytes() == facts
    with pytest.raises(UserError, match="already holds another index"):
        shards(index, out, "int16")
    with pytest.raises(UserError, match=r"there is no .*nope$"):
        shards(tmp_path / "nope", tmp_path / "other")
    (tmp_path / "corpus").mkdir()
    with pytest.raises(UserError, match=r"is not an index: make one with `sjepa index .*/corpus --out corpus-index`"):
        shards(tmp_path / "corpus", tmp_path / "other")


@pytest.mark.parametrize(
    "name",
    ["000000.tar", "labels.arrow", "refused.txt", "notes.txt", "parts", "parts/mine.arrow", "parts/settings.json"],
)
@pytest.mark.parametrize("command", ["index", "shard"])
def test_a_folder_with_files_of_the_user_is_refused_and_left_alone(
    command: str, name: str, index: Path, corpus: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(UserError, match="is not empty and is not an index"):
        dispatch([command, str(corpus if command == "index" else index), "--out", str(tmp_path / "out")])
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "{}"


def test_shards_do_not_continue_an_index_nor_an_index_shards(index: Path, corpus: Path, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    calls = {"index": ["index", str(corpus)], "shard": ["shard", str(index), "--workers", "1"]}
    for begun, other in (("index", "shard"), ("shard", "index")):
        out = ["--out", str(tmp_path / begun)]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("sjepa.data.index.summarise_lengths", stop)
            with pytest.raises(KeyboardInterrupt):
                dispatch([*calls[begun], *out])
        with pytest.raises(UserError, match="holds an unfinished index with other settings"):
            dispatch([*calls[other], *out])
        dispatch([*calls[begun], *out])


def test_shards_that_were_killed_at_once_leave_an_empty_folder_and_continue(index: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    assert shards(index, tmp_path)["utterances"] > 0


def test_shards_of_audio_that_was_missing_are_made_when_it_is_back(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", babble(2.0, 0), 16_000)
    build_index([str(tmp_path)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    (tmp_path / "a.wav").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="no usable audio"):
        shards(tmp_path / "index", tmp_path / "shards")
    assert not (tmp_path / "shards").exists()
    (tmp_path / "moved").rename(tmp_path / "a.wav")
    assert shards(tmp_path / "index", tmp_path / "shards")["utterances"] == 1


def test_a_shard_without_usable_audio_has_no_tar_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sjepa.data import shards as module

    for number in range(2):
        soundfile.write(tmp_path / f"{number}.wav", babble(2.0, number), 16_000)
    build_index([str(tmp_path)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    (tmp_path / "0.wav").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(module, "merge_parts", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shards(tmp_path / "index", tmp_path / "shards", hours=2 / 3600)
    monkeypatch.setattr(module, "write_shard", interrupt)
    facts = shards(tmp_path / "index", tmp_path / "shards", hours=2 / 3600)
    assert (facts["utterances"], facts["files"], facts["refused"]) == (1, 1, 1)
    assert len(list((tmp_path / "shards").glob("*.tar"))) == 1


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_an_interruption_keeps_the_shards_that_are_done(
    index: Path, flac: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sjepa.data import shards as module

    write_shard, done = module.write_shard, []

    def stop_at_third(path: Path, *rest: Any) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        write_shard(path, *rest)
        done.append(path)

    out = tmp_path / "shards"
    monkeypatch.setattr(module, "write_shard", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        shards(index, out)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    assert len(times) == 2
    monkeypatch.setattr(module, "write_shard", write_shard)
    shards(index, out)
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times
    assert (out / "audio.arrow").read_bytes() == (flac / "audio.arrow").read_bytes()


def test_blocks_of_neighbours_stand_together_on_each_rank() -> None:
    lengths = np.full(4096, 20_000, dtype=np.int32)
    plan = BatchPlan(lengths, seconds=128.0, buckets=(1.0,), seed=0, block=16).epoch(2)
    spec = plan[0]
    assert len(spec.utterances) == 128
    for rank in range(4):
        mine = spec.utterances[spec.places(rank, 4)].astype(int)
        assert (np.diff(mine) == 1).sum() >= 29  # 32 in two or three runs
    everything = np.concatenate([plan[n].utterances for n in range(len(plan))])
    assert len(np.unique(everything)) == len(everything) == 4096
    other = BatchPlan(lengths, seconds=128.0, buckets=(1.0,), seed=0, block=16).epoch(3)
    assert not np.array_equal(plan[0].utterances, other[0].utterances)


def test_blocks_of_neighbours_begin_elsewhere_in_each_epoch() -> None:
    plan = BatchPlan(np.full(4096, 20_000, np.int32), seconds=128.0, buckets=(1.0,), seed=0, block=16)
    usual = []
    for epoch in map(plan.epoch, range(8)):
        order = epoch.utterances.astype(int)
        begins = order[1:][np.diff(order) != 1]
        usual.append(int(np.bincount(begins % 16).argmax()))
    assert len(set(usual)) > 4


def test_a_shard_that_vanishes_or_is_cut_does_not_lose_the_run(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    shards(index, out)
    (out / "000001.tar").unlink()
    whole = (out / "000002.tar").read_bytes()
    (out / "000002.tar").write_bytes(whole[: len(whole) // 3])
    reader, plan = reader_of(str(out))
    bad: list[str] = []
    for number in range(len(plan.epoch(0))):
        batch = reader[plan.epoch(0)[number]]
        assert batch.waveforms.shape == (6, 16_000)
        assert batch.waveforms.any(dim=1).all()
        bad += batch.bad
    assert any("000001.tar: cannot be read (No such file or directory)" in line for line in bad)
    assert any("000002.tar: cut short" in line for line in bad)
    for path in out.glob("*.tar"):
        path.unlink()
    with pytest.raises(UserError, match="every file of a batch is damaged"):
        reader[plan.epoch(0)[0]]
    stream = load(reader, plan, (0, 0), 1, torch.device("cpu"))
    with pytest.raises(UserError, match=r"^every file of a batch[^\n]*$"):  # one line, also from a worker process
        next(stream)


def test_an_index_of_shards_cannot_lead_out_of_its_folder(flac: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    for name in ("../secret.tar", "/etc/passwd", "http://elsewhere/x.tar"):
        out = tmp_path / str(abs(hash(name)))
        out.mkdir()
        for path in flac.iterdir():
            (out / path.name).write_bytes(path.read_bytes())
        table = pa.table({"path": pa.array([name.encode()] * 4, pa.binary())})
        with pa.OSFile(str(out / "files.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(BadAudioError, match="is outside the folder"):
            open_index(str(out)).read(0)


def test_training_is_the_same_from_an_index_shards_or_a_url(
    index: Path, flac: Path, serve: Serve, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    url, _ = serve(flac)
    config = micro(augment={"noise": str(index), "p_noise": 1.0}, batches={"workers": 1, "cache": "none"})
    for name, data in (("shards", str(flac)), ("url", url)):
        assert pretrain(config, data, tmp_path / name, show=False)
    lines = [[json.loads(line) for line in (tmp_path / run / "metrics.jsonl").open()] for run in ("shards", "url")]
    for a, b in zip(*lines, strict=True):
        assert a | {"speed": 0} == b | {"speed": 0}
    assert lines[0][0]["event"] == "data"
    assert 0 < lines[0][0]["crop_loss"] < 1
    assert pretrain(config, f"{index}=1,{flac}=3", tmp_path / "both", show=False)


def test_plan_batches_takes_blocks_and_shares_from_the_corpus(
    index: Path, flac: Path, micro: Callable[..., Config]
) -> None:
    assert plan_batches(open_index(str(flac)), micro().batches, 0, 1).block == 16
    assert plan_batches(open_index(str(index)), micro().batches, 0, 1).block == 1


def test_the_command_after_shards_can_be_copied_from_a_folder_with_a_space(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"hours": 1.0, "utterances": 1, "files": 1, "refused": 0}
    monkeypatch.setattr("sjepa.data.shards.write_shards", lambda *_, **__: facts)
    dispatch(["shard", "index", "--out", "my shards"])
    assert "sjepa pretrain --data 'my shards'" in capsys.readouterr().out
