"""Shards in an S3 bucket: the same as on disk, with retries after errors and clear messages for missing files."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from conftest import babble

from sjepa import UserError
from sjepa.audio.augment import AugmentConfig
from sjepa.audio.io import BadAudioError
from sjepa.data import storage, waiting
from sjepa.data.build import build_index
from sjepa.data.index import open_index, read_labels
from sjepa.data.loader import BatchReader, load
from sjepa.data.masking import MaskConfig
from sjepa.data.opening import open_corpus
from sjepa.data.sampler import BatchPlan
from sjepa.data.shards import write_shards

UTTERANCES = 16


class Breakable:
    """Stands before a server's application: so many answers with audio stop half-way."""

    def __init__(self, application: Any):
        self.application, self.break_next, self.asked = application, 0, 0

    def __call__(self, environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        answer = b"".join(self.application(environment, start))
        if environment["REQUEST_METHOD"] == "GET" and environment["PATH_INFO"].endswith(".tar"):
            self.asked += 1
            if self.break_next:
                self.break_next -= 1
                return [answer[: len(answer) // 2]]
        return [answer]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(UTTERANCES):
        soundfile.write(folder / f"{number:02d}.wav", babble(1.0 + 0.05 * number, number), 16_000)
    (folder / "list.jsonl").write_text("\n".join(json.dumps({"path": f"{n:02d}.wav"}) for n in range(UTTERANCES)))
    made = tmp_path_factory.mktemp("made")
    build_index([str(folder / "list.jsonl")], made / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    pack(str(made / "index"), made / "shards")
    return made / "shards"


def pack(source: str, out: Path) -> None:
    write_shards(source, out, encoding="flac", shard_hours=10 / 3600, seed=0, workers=1)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """moto's server, found by the environment as any S3 is."""
    s3fs, moto = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    running = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(waiting, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)  # its own, within each of ours
    s3fs.S3FileSystem.clear_instance_cache()  # a connection to another test's server
    storage.failing_urls.clear()
    yield running
    running.stop()


@pytest.fixture
def bucket(server: Any, shards: Path) -> tuple[str, Breakable]:
    """The shards copied to a bucket, and what can break on the way from it."""
    client = pytest.importorskip("boto3").client("s3")
    client.create_bucket(Bucket="speech")
    for path in shards.iterdir():
        client.upload_file(str(path), "speech", f"shards/{path.name}")
    server._server.app = application = Breakable(server._server.app)
    return "s3://speech/shards", application


def reader_of(where: str) -> tuple[BatchReader, BatchPlan]:
    corpus = open_corpus(where, 15.0, "none", 0.0)
    plan = BatchPlan(corpus.length, seconds=4.0, buckets=(1.0,), seed=0, block=corpus.block)
    return BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=0, rank=0, world_size=1), plan


def test_shards_in_a_bucket_are_the_same_as_on_disk(shards: Path, bucket: tuple[str, Breakable]) -> None:
    here, there = open_index(str(shards)), open_index(bucket[0])
    assert there.fingerprint() == here.fingerprint()
    assert read_labels(bucket[0]).equals(read_labels(str(shards)))
    for utterance in (0, 7, UTTERANCES - 1):
        assert np.array_equal(there.read(utterance, 100, 5000), here.read(utterance, 100, 5000))


def test_worker_processes_read_batches_from_a_bucket(shards: Path, bucket: tuple[str, Breakable]) -> None:
    (remote, plan), (local, _) = reader_of(bucket[0]), reader_of(str(shards))
    stream = load(remote, plan, (0, 0), 2, torch.device("cpu"))
    for number in range(3):
        assert torch.equal(next(stream).waveforms, local[plan.epoch(0)[number]].waveforms)
    stream.close()  # type: ignore[attr-defined]
    # Workers fetch further batches ahead, so requests are counted here.
    bucket[1].asked = 0
    for number in range(3):
        assert len(remote[plan.epoch(0)[number]].waveforms) == 4
    assert bucket[1].asked < 3 * 4  # neighbours come together


def test_shards_are_made_from_an_index_in_a_bucket_but_not_written_to_one(
    shards: Path, bucket: tuple[str, Breakable], tmp_path: Path
) -> None:
    pack(bucket[0], tmp_path / "again")
    assert sorted(read_labels(str(tmp_path / "again"))["id"].to_pylist()) == sorted(
        read_labels(str(shards))["id"].to_pylist()
    )
    with pytest.raises(UserError, match="write to a folder, then copy it there"):
        pack(str(shards), Path("s3://speech/more"))


def test_an_answer_that_breaks_off_is_requested_again(shards: Path, bucket: tuple[str, Breakable]) -> None:
    url, application = bucket
    corpus, here = open_index(url), open_index(str(shards))
    application.break_next = 2
    assert np.array_equal(corpus.read(3), here.read(3))
    assert application.break_next == 0
    application.break_next = 1_000
    with pytest.raises(BadAudioError, match=r"^s3://[^\n]*\.tar: cannot be read after several tries[^\n]*$"):
        corpus.read(4)
    application.break_next = 0
    assert np.array_equal(corpus.read(4), here.read(4))


def test_what_is_not_there_is_one_clear_line(bucket: tuple[str, Breakable], server: Any) -> None:
    for place in ("s3://speech/nowhere", "s3://nobody/shards"):
        with pytest.raises(UserError, match=rf"^{place}/index\.json: there is no such file$"):
            open_corpus(place, 15.0, "none", 0.0)
    server.stop()
    with pytest.raises(UserError, match=r"index\.json: cannot be read after several tries \(Could not connect"):
        open_corpus(bucket[0], 15.0, "none", 0.0)


def test_without_s3fs_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.delitem(registry._registry, "s3", raising=False)  # what an earlier test imported
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"^s3://speech/shards/index\.json: cannot be opened .* 'sjepa\[s3\]'$"):
        open_corpus("s3://speech/shards", 15.0, "none", 0.0)
