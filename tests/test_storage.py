"""Audio behind URLs: concurrent requests, downloads, and waiting in an outage."""

import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import micro_config
from served import Serve, reader_of
from small_runs import lines

from sjepa import UserError, cli
from sjepa.audio.io import BadAudioError
from sjepa.data import index as index_module
from sjepa.data import prefetch, storage, waiting
from sjepa.data.index import open_index, read_labels
from sjepa.data.prefetch import place_orders
from sjepa.data.sampler import BatchSpec
from sjepa.data.storage import ByteRange, UnreachableError, fetch
from sjepa.data.workers import choose_workers
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import to_toml
from sjepa.train import loop
from sjepa.train.run import Run


def test_the_stretches_of_a_batch_are_requested_at_the_same_time(tmp_path: Path, serve: Serve) -> None:
    names = [f"{number}.bin" for number in range(12)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 100)
    url, handler = serve(tmp_path)
    handler.gate = threading.Barrier(12, timeout=30)  # broken unless all requests are there at once
    places = [ByteRange(f"{url}/{name}", 5, 10) for name in names]
    with prefetch.Prefetch().hold(0, places):
        assert [storage.read_bytes(place) for place in places] == [(name.encode() * 100)[5:15] for name in names]
    assert len(handler.requests) == 12


def test_audio_of_later_batches_is_on_its_way_while_one_is_made(flac: Path, serve: Serve) -> None:
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


def test_a_server_that_stalls_costs_seconds(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_server_that_refuses_is_asked_once(tmp_path: Path, serve: Serve) -> None:
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
    serve: Serve,
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


def test_a_url_that_failed_is_tried_in_full_again_once_it_answers(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    url, handler = serve(tmp_path)
    place = ByteRange(f"{url}/a.bin", 0, 4)
    handler.break_next = storage.TRIES
    with pytest.raises(BadAudioError):
        fetch(place)
    assert fetch(place) == b"0123"
    handler.break_next = storage.TRIES - 1
    assert fetch(place) == b"0123"


def test_a_file_that_is_gone_is_not_waited_for(tmp_path: Path, serve: Serve) -> None:
    url, handler = serve(tmp_path)
    places = [ByteRange(f"{url}/gone.tar", 100 * number, 10) for number in range(3)]
    with prefetch.Prefetch().hold(0, places):
        for place in places:
            with pytest.raises(BadAudioError, match="there is no such file"):
                storage.read_bytes(place)
    assert len(handler.requests) == 1


def test_one_process_of_a_machine_fetches_the_index_and_no_labels(flac: Path, serve: Serve) -> None:
    url, handler = serve(flac)
    with ThreadPoolExecutor(4) as pool:
        corpora = list(pool.map(lambda _: open_index(url), range(4)))
    assert {corpus.fingerprint() for corpus in corpora} == {open_index(str(flac)).fingerprint()}
    fetched = [request.split()[0] for request in handler.requests if not request.startswith("index.json")]
    assert sorted(fetched) == ["audio.arrow", "files.arrow"]
    assert read_labels(url).equals(read_labels(str(flac)))


def test_a_damaged_column_in_the_cache_is_downloaded_again(flac: Path, serve: Serve, tmp_path: Path) -> None:
    url, handler = serve(flac)
    open_index(url)
    (column,) = (tmp_path / "cache").rglob("audio.arrow")
    os.truncate(column, 100)
    handler.requests.clear()
    assert open_index(url).fingerprint() == open_index(str(flac)).fingerprint()
    assert [request.split()[0] for request in handler.requests] == ["index.json", "audio.arrow"]
    assert column.read_bytes() == (flac / "audio.arrow").read_bytes()


def test_a_column_that_arrives_incomplete_is_not_cached(
    flac: Path,
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, _ = serve(flac)
    monkeypatch.setattr(index_module, "download", lambda _, path, size: path.write_bytes(bytes(size - 1)))
    with pytest.raises(UserError, match="changed its size while it was downloaded"):
        open_index(url)
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_a_damaged_column_on_the_server_is_not_cached(flac: Path, serve: Serve, tmp_path: Path) -> None:
    served = shutil.copytree(flac, tmp_path / "served")
    os.truncate(served / "audio.arrow", 100)
    url, _ = serve(served)
    with pytest.raises(UserError, match=r"/audio\.arrow is damaged: rebuild the index$"):
        open_index(url)
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    shutil.copy(flac / "audio.arrow", served)
    assert len(open_index(url)) == 24


def test_a_large_file_is_downloaded_in_parts(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).bytes(1_050)
    (tmp_path / "large").write_bytes(content)
    url, handler = serve(tmp_path)
    monkeypatch.setattr(storage, "PART", 100)
    assert storage.file_size(f"{url}/large") == 1_050
    storage.download(f"{url}/large", tmp_path / "here", 1_050)
    assert (tmp_path / "here").read_bytes() == content
    assert len(handler.requests) == 11


def test_workers_follow_the_cores_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert (choose_workers(None, "cuda"), choose_workers(None, "cpu"), choose_workers(0, "cuda")) == (8, 2, 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert choose_workers(None, "cuda") == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert choose_workers(None, "cuda") == 1


def test_an_outage_that_lasts_saves_the_run_and_ends_it_with_its_own_code(
    flac: Path,
    serve: Serve,
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
