"""Audio behind URLs: concurrent requests, waiting in an outage, and a cache of shards that a node shares."""

import errno
import os
import re
import shutil
import signal
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import micro_config
from small_runs import lines
from test_shards import Handler, Serve, flac, index, reader_of, serve  # noqa: F401

from sjepa import UserError, cli
from sjepa.audio.io import BadAudioError
from sjepa.data import index as index_module
from sjepa.data import prefetch, shard_cache, storage, waiting
from sjepa.data.index import open_index, read_labels
from sjepa.data.loader import load
from sjepa.data.opening import open_corpus
from sjepa.data.prefetch import place_orders
from sjepa.data.sampler import BatchSpec
from sjepa.data.shard_cache import ShardCache
from sjepa.data.storage import ByteRange, UnreachableError, fetch
from sjepa.data.workers import choose_workers
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import to_toml
from sjepa.train import loop
from sjepa.train.run import Run


def test_the_stretches_of_a_batch_are_requested_at_the_same_time(tmp_path: Path, serve: Serve) -> None:  # noqa: F811
    names = [f"{number}.bin" for number in range(12)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 100)
    url, handler = serve(tmp_path)
    handler.gate = threading.Barrier(12, timeout=30)  # broken unless all requests are there at once
    places = [ByteRange(f"{url}/{name}", 5, 10) for name in names]
    with prefetch.Prefetch().hold(0, places):
        assert [storage.read_bytes(place) for place in places] == [(name.encode() * 100)[5:15] for name in names]
    assert len(handler.requests) == 12


def test_audio_of_later_batches_is_on_its_way_while_one_is_made(flac: Path, serve: Serve) -> None:  # noqa: F811
    url, handler = serve(flac)
    reader, plan = reader_of(url)
    handler.requests.clear()
    order = next(place_orders(plan.batches(0, 0), 2))
    reader.fetch_ahead(*order)
    for pieces in reader.prefetch.pending.values():
        for _, future in pieces:
            future.result()
    asked = len(handler.requests)
    for spec in (order.spec, *order.following):
        assert len(reader[spec].waveforms)
    assert len(handler.requests) == asked  # nothing was asked for again
    assert not reader.prefetch.pending


def test_orders_name_what_the_same_process_makes_next() -> None:
    specs = (BatchSpec(0, number, np.zeros(1), 1) for number in range(100))
    orders = [next(stream) for stream in [place_orders(specs, 4)] for _ in range(5)]
    assert [order.spec.index for order in orders] == [0, 1, 2, 3, 4]
    assert [[spec.index for spec in order.following] for order in orders[:2]] == [[4, 8, 12], [5, 9, 13]]


def test_a_server_that_stalls_costs_seconds(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    url, handler = serve(tmp_path)
    handler.latency = 2.0
    monkeypatch.setattr(storage, "STALL", 0.1)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="cannot be read after several tries"):
        fetch(ByteRange(f"{url}/a.bin", 2, 3))
    assert time.monotonic() - began < 5 * 2.0
    handler.latency = 0.0
    assert fetch(ByteRange(f"{url}/a.bin", 2, 3)) == b"234"


def test_a_server_that_refuses_is_asked_once(tmp_path: Path, serve: Serve) -> None:  # noqa: F811
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    url, handler = serve(tmp_path)
    for status, requests in ((403, 1), (503, storage.TRIES)):
        handler.refuse = status
        handler.requests.clear()
        with pytest.raises(UnreachableError, match=f"a.bin: cannot be read.*{status}"):
            fetch(ByteRange(f"{url}/a.bin", 2, 3))
        assert len(handler.requests) == requests


def test_an_outage_is_waited_out_and_reported_once(
    tmp_path: Path,
    serve: Serve,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    url, handler = serve(tmp_path)
    monkeypatch.setattr(waiting, "LONGEST_WAIT", 0.02)
    handler.break_next = 3 * storage.TRIES
    stream = prefetch.Prefetch(reports=True)
    with stream.hold(0, [ByteRange(f"{url}/a.bin")]):
        assert storage.read_bytes(ByteRange(f"{url}/a.bin")) == b"0123456789"
    assert handler.break_next == 0
    assert capfd.readouterr().err.count("no answer (") == 1
    # A stream that is closed does not wait for a server.
    handler.break_next = 1_000
    stream.ended.fill_(True)
    began = time.monotonic()
    with stream.hold(1, [ByteRange(f"{url}/a.bin")]), pytest.raises(UnreachableError):
        storage.read_bytes(ByteRange(f"{url}/a.bin"))
    assert time.monotonic() - began < 1


def test_a_url_that_failed_is_tried_in_full_again_once_it_answers(tmp_path: Path, serve: Serve) -> None:  # noqa: F811
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    url, handler = serve(tmp_path)
    place = ByteRange(f"{url}/a.bin", 0, 4)
    handler.break_next = storage.TRIES
    with pytest.raises(BadAudioError):
        fetch(place)
    assert fetch(place) == b"0123"
    handler.break_next = storage.TRIES - 1
    assert fetch(place) == b"0123"


def test_a_file_that_is_gone_is_not_waited_for(tmp_path: Path, serve: Serve) -> None:  # noqa: F811
    url, handler = serve(tmp_path)
    places = [ByteRange(f"{url}/gone.tar", 100 * number, 10) for number in range(3)]
    with prefetch.Prefetch().hold(0, places):
        for place in places:
            with pytest.raises(BadAudioError, match="there is no such file"):
                storage.read_bytes(place)
    assert len(handler.requests) == 1


def test_one_process_of_a_machine_fetches_the_index_and_no_labels(flac: Path, serve: Serve) -> None:  # noqa: F811
    url, handler = serve(flac)
    with ThreadPoolExecutor(4) as pool:
        corpora = list(pool.map(lambda _: open_index(url), range(4)))
    assert {corpus.fingerprint() for corpus in corpora} == {open_index(str(flac)).fingerprint()}
    fetched = [request.split()[0] for request in handler.requests if not request.startswith("index.json")]
    assert sorted(fetched) == ["audio.arrow", "files.arrow"]
    assert read_labels(url).equals(read_labels(str(flac)))


def test_a_damaged_column_in_the_cache_is_downloaded_again(flac: Path, serve: Serve, tmp_path: Path) -> None:  # noqa: F811
    url, handler = serve(flac)
    open_index(url)
    (column,) = (tmp_path / "cache").rglob("audio.arrow")
    os.truncate(column, 100)
    handler.requests.clear()
    assert open_index(url).fingerprint() == open_index(str(flac)).fingerprint()
    assert [request.split()[0] for request in handler.requests] == ["index.json", "audio.arrow"]
    assert column.read_bytes() == (flac / "audio.arrow").read_bytes()


def test_a_column_that_arrives_incomplete_is_not_cached(
    flac: Path,  # noqa: F811
    serve: Serve,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, _ = serve(flac)
    monkeypatch.setattr(index_module, "download", lambda _, path, size: path.write_bytes(bytes(size - 1)))
    with pytest.raises(UserError, match="changed its size while it was downloaded"):
        open_index(url)
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_a_damaged_column_on_the_server_is_not_cached(flac: Path, serve: Serve, tmp_path: Path) -> None:  # noqa: F811
    served = shutil.copytree(flac, tmp_path / "served")
    os.truncate(served / "audio.arrow", 100)
    url, _ = serve(served)
    with pytest.raises(UserError, match=r"/audio\.arrow is damaged: rebuild the index$"):
        open_index(url)
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    shutil.copy(flac / "audio.arrow", served)
    assert len(open_index(url)) == 24


def test_a_large_file_is_downloaded_in_parts(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    content = np.random.default_rng(0).bytes(1_050)
    (tmp_path / "large").write_bytes(content)
    url, handler = serve(tmp_path)
    monkeypatch.setattr(storage, "PART", 100)
    assert storage.file_size(f"{url}/large") == 1_050
    storage.download(f"{url}/large", tmp_path / "here", 1_050)
    assert (tmp_path / "here").read_bytes() == content
    assert len(handler.requests) == 11


# ---- The cache of shards.


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_cache, "REST", 0.0)
    monkeypatch.setattr(shard_cache, "TOUCHED", 0.0)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{shard_cache.ENDING}"))


@pytest.fixture
def wholes(tmp_path: Path, serve: Serve) -> tuple[list[str], type[Handler], Path]:  # noqa: F811
    """URLs of three shards of 1,000 bytes, their server, and a folder for a cache."""
    (tmp_path / "served").mkdir()
    for number in range(3):
        (tmp_path / "served" / f"{number}.tar").write_bytes(bytes([number]) * 1_000)
    url, handler = serve(tmp_path / "served")
    return [f"{url}/{number}.tar" for number in range(3)], handler, tmp_path / "cached"


def test_workers_read_a_cached_shard_without_a_request(
    flac: Path,  # noqa: F811
    serve: Serve,  # noqa: F811
    tmp_path: Path,
) -> None:
    url, handler = serve(flac)
    cache = ShardCache(tmp_path / "shards", 10**9)
    corpus = open_corpus(url, 15.0, "none", 0.0, shard_cache=cache)
    here = open_index(str(flac))
    assert np.array_equal(corpus.read(3), here.read(3))  # by a range, while the shard is downloaded
    for utterance in range(len(corpus)):
        corpus.read(utterance)
    wait_until(lambda: len(kept(cache.folder)) == len(list(flac.glob("*.tar"))))
    handler.requests.clear()
    reader, plan = reader_of(url)
    reader.corpus = corpus
    stream = load(reader, plan, (0, 0), 1, torch.device("cpu"))
    local, _ = reader_of(str(flac))
    for number in range(3):
        assert torch.equal(next(stream).waveforms, local[plan.epoch(0)[number]].waveforms)
    stream.close()
    assert not [request for request in handler.requests if ".tar" in request]
    assert corpus.name(0).startswith(url)
    assert not list(cache.folder.glob("*.lock"))


@pytest.mark.usefixtures("no_pauses")
def test_a_full_cache_removes_what_was_not_used_for_long_and_nothing_else(
    wholes: tuple[list[str], type[Handler], Path],
) -> None:
    urls, _, folder = wholes
    cache = ShardCache(folder, 2_500)
    paths = {}
    for url in urls[:2]:
        cache.find(url, "x")
        wait_until(lambda: cache.find(url, "x") != url)  # noqa: B023
        paths[url] = Path(cache.find(url, "x"))
    cache.find(urls[2], "x")
    wait_until(lambda: not cache.names)
    assert len(kept(folder)) == 2  # both were just used: the third is read from its URL
    long_ago = time.time() - 2 * shard_cache.IDLE
    os.utime(paths[urls[0]], (long_ago, long_ago))
    cache.find(urls[2], "x")
    wait_until(lambda: cache.find(urls[2], "x") != urls[2])
    assert not paths[urls[0]].exists()
    assert Path(cache.find(urls[2], "x")).read_bytes() == bytes([2]) * 1_000
    assert cache.find(urls[2], "another corpus at the same place") == urls[2]


@pytest.mark.usefixtures("no_pauses")
def test_processes_of_a_node_download_a_shard_once_and_sweep_what_a_kill_left(
    wholes: tuple[list[str], type[Handler], Path],
) -> None:
    urls, handler, folder = wholes
    caches = [ShardCache(folder, 10_000) for _ in range(4)]
    path = folder / "0123.shard"
    for name in ("0123", "4567"):
        (folder / f".{name}.shard.0a1b2c3d.partial").write_bytes(b"half")
    barrier = threading.Barrier(4)

    def keep(cache: ShardCache) -> None:
        barrier.wait()
        cache.keep(urls[0], path)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(keep, caches))
    assert len(handler.requests) == 1
    assert [path.name for path in folder.iterdir()] == ["0123.shard"]


@pytest.mark.usefixtures("no_pauses")
def test_files_that_vanish_while_room_is_made_do_not_end_the_cache(
    wholes: tuple[list[str], type[Handler], Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    urls, _, folder = wholes
    cache = ShardCache(folder, 10_000)
    passing = [folder / name for name in ("4567.lock", "4567.shard", ".89ab.shard.0a1b2c3d.partial")]
    disk_scan = os.scandir

    def scan(where: Path) -> list[os.DirEntry[str]]:
        entries = list(disk_scan(where))
        for path in passing:  # another process removes them after they were listed
            path.unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(cache, "remove_leftovers", lambda _: [path.touch() for path in passing])
    monkeypatch.setattr(os, "scandir", scan)
    cache.try_to_keep(urls[0], folder / "0123.shard")
    monkeypatch.undo()
    assert [path.name for path in folder.iterdir()] == ["0123.shard"]
    assert not capfd.readouterr().err


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("harm", ["little space", "no space to reserve", "no space", "too small"])
def test_a_full_disk_is_reported_once_and_shards_are_read_from_their_urls(
    wholes: tuple[list[str], type[Handler], Path],
    harm: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    urls, _, folder = wholes
    caches = [ShardCache(folder, 500 if harm == "too small" else 10_000) for _ in range(2)]
    usage = namedtuple("usage", "total free")
    if harm == "little space":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100_000, 5_500))
    if harm == "no space to reserve":
        monkeypatch.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC), raising=False)
    if harm == "no space":
        monkeypatch.setattr(shard_cache, "download", fail_with(errno.ENOSPC))
    for cache in caches:
        for url in urls:
            assert cache.find(url, "x") == url
        wait_until(lambda: not cache.names)  # noqa: B023
    reason = {"no space": "No space left on device", "too small": "a shard has"}.get(harm, "the disk is full")
    output = capfd.readouterr().err
    assert output.count("shards cannot be kept there") == 1
    assert reason in output
    assert not kept(folder)
    assert not list(folder.glob("*.partial"))


@pytest.mark.usefixtures("no_pauses")
def test_a_cache_that_cannot_be_written_is_reported_once(
    wholes: tuple[list[str], type[Handler], Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    urls, _, folder = wholes
    cache, open_file = ShardCache(folder, 10_000), os.open

    def refuse(path: Any, *rest: Any, **options: Any) -> int:
        if Path(path).parent == folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    for url in urls:
        assert cache.find(url, "x") == url
        wait_until(lambda: not cache.names)
    assert capfd.readouterr().err.count("shards cannot be kept there (cannot write to") == 1


def fail_with(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve space")
def test_a_shard_occupies_its_space_before_it_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, partial = ShardCache(tmp_path, 10**7), tmp_path / ".0123.shard.0a1b2c3d.partial"
    cache.reserve(partial, 10**6)
    assert 512 * partial.stat().st_blocks >= partial.stat().st_size == 10**6
    monkeypatch.setattr(os, "posix_fallocate", fail_with(errno.EOPNOTSUPP))
    cache.reserve(partial, 10**6)
    assert partial.stat().st_size == 10**6


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^batches\.shard_cache: cannot make "):
        ShardCache(tmp_path / "file" / "cache", 1)


def test_workers_follow_the_cores_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert (choose_workers(None, "cuda"), choose_workers(None, "cpu"), choose_workers(0, "cuda")) == (8, 2, 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert choose_workers(None, "cuda") == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert choose_workers(None, "cuda") == 1


def test_an_outage_that_lasts_saves_the_run_and_ends_it_with_its_own_code(
    flac: Path,  # noqa: F811
    serve: Serve,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, handler = serve(flac)
    phases = {"phase1": {"steps": 22}, "phase2": {"steps": 1, "visible_loss_until": 1, "augment_until": 1}}
    config = micro_config(batches={"cache": "none", "workers": 0}, train={"checkpoint_every": 999}, **phases)
    preset = tmp_path / "config.toml"
    preset.write_text(to_toml(config))
    call = ["pretrain", "--preset", str(preset), "--data", url, "--out", str(tmp_path / "run")]
    train_step = loop.train_step

    def break_later(run: Run, *others: Any) -> None:
        train_step(run, *others)
        if run.step == 1:
            handler.refuse = 503

    monkeypatch.setattr(loop, "train_step", break_later)
    monkeypatch.setattr(waiting, "LONGEST_WAIT", 0.02)
    monkeypatch.setattr(waiting, "FIRST_WAIT", 0.02)
    monkeypatch.setattr(prefetch, "OUTAGE", 0.3)
    with pytest.raises(SystemExit) as ended:
        cli.main(call)
    assert ended.value.code == 75
    line = r"sjepa: the storage of the audio does not answer \(.+\); the same command continues\n"
    assert re.search(line, capsys.readouterr().err)
    first = RunFolder(tmp_path / "run").step
    assert first >= 2
    # A request to stop does not wait for the server either.
    handler.refuse = 0
    monkeypatch.setattr(prefetch, "OUTAGE", 600.0)

    def break_and_ask(run: Run, *others: Any) -> None:
        train_step(run, *others)
        if run.step == first:
            handler.refuse = 503
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()

    monkeypatch.setattr(loop, "train_step", break_and_ask)
    began = time.monotonic()
    assert not loop.pretrain(config, url, tmp_path / "run", show=False)
    assert time.monotonic() - began < 30
    assert RunFolder(tmp_path / "run").step > first
    handler.refuse = 0
    monkeypatch.setattr(loop, "train_step", train_step)
    assert loop.pretrain(config, url, tmp_path / "run", show=False)
    whole = tmp_path / "whole"
    assert loop.pretrain(config, str(flac), whole, show=False)
    assert lines(tmp_path / "run", "train") == lines(whole, "train")
