"""The cache of shards that the processes of a machine share."""

import errno
import os
import shutil
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
from served import Handler, Serve, reader_of

from sjepa import UserError
from sjepa.data import shard_cache
from sjepa.data.index import open_index
from sjepa.data.loader import load
from sjepa.data.opening import open_corpus
from sjepa.data.shard_cache import ShardCache


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
def wholes(tmp_path: Path, serve: Serve) -> tuple[list[str], type[Handler], Path]:
    """URLs of three shards of 1,000 bytes, their server, and a folder for a cache."""
    (tmp_path / "served").mkdir()
    for number in range(3):
        (tmp_path / "served" / f"{number}.tar").write_bytes(bytes([number]) * 1_000)
    url, handler = serve(tmp_path / "served")
    return [f"{url}/{number}.tar" for number in range(3)], handler, tmp_path / "cached"


def test_workers_read_a_cached_shard_without_a_request(
    flac: Path,
    serve: Serve,
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
