"""Shards behind HTTP: the same audio as on disk, few requests, and answers that break off."""

from pathlib import Path

import numpy as np
import pytest
import torch
from served import Serve, by_id, reader_of

from sjepa import UserError
from sjepa.audio.io import BadAudioError
from sjepa.data import storage
from sjepa.data.index import open_index
from sjepa.data.loader import load
from sjepa.data.opening import open_corpus


def test_shards_behind_http_are_the_same_as_on_disk(flac: Path, serve: Serve) -> None:
    url, _ = serve(flac)
    here, there = open_index(str(flac)), open_index(url)
    assert there.fingerprint() == here.fingerprint()
    for utterance in (0, 7, 23):
        assert np.array_equal(there.read(utterance, 100, 5000), here.read(utterance, 100, 5000))
    assert by_id(url).keys() == by_id(str(flac)).keys()


def test_neighbours_are_fetched_in_one_request(flac: Path, serve: Serve) -> None:
    url, handler = serve(flac)
    remote, plan = reader_of(url)
    local, _ = reader_of(str(flac))
    handler.requests.clear()
    for number in range(3):
        spec = plan.epoch(0)[number]
        assert torch.equal(remote[spec].waveforms, local[spec].waveforms)
    assert len(handler.requests) < 18  # six utterances a batch
    assert all("bytes=" in request for request in handler.requests)


def test_worker_processes_read_from_http(flac: Path, serve: Serve) -> None:
    url, _ = serve(flac)
    remote, plan = reader_of(url)
    local, _ = reader_of(str(flac))
    stream = load(remote, plan, (0, 0), 2, torch.device("cpu"))
    for number in range(3):
        assert torch.equal(next(stream).waveforms, local[plan.epoch(0)[number]].waveforms)
    stream.close()  # type: ignore[attr-defined]


def test_an_answer_that_breaks_off_is_requested_again(flac: Path, serve: Serve) -> None:
    url, handler = serve(flac)
    corpus = open_index(url)
    handler.break_next = storage.TRIES - 1
    assert np.array_equal(corpus.read(3), open_index(str(flac)).read(3))
    handler.break_next = 1_000
    with pytest.raises(BadAudioError, match=r"\.tar: cannot be read after several tries") as first:
        corpus.read(4)
    asked = len(handler.requests)
    with pytest.raises(BadAudioError) as later:
        corpus.read(4)
    assert len(handler.requests) == asked + 1  # a shard that failed costs one try each from then on
    assert str(later.value) == str(first.value)  # so it is listed once
    handler.break_next = 0
    assert np.array_equal(corpus.read(4), open_index(str(flac)).read(4))


def test_urls_that_cannot_be_opened_are_one_clear_line(flac: Path, serve: Serve) -> None:
    url, handler = serve(flac)
    with pytest.raises(UserError, match=r"nowhere/index\.json: there is no such file"):
        open_corpus(f"{url}/nowhere", 15.0, "none", 0.0)
    with pytest.raises(UserError, match="cannot be read after several tries"):
        open_corpus("http://127.0.0.1:9/shards", 15.0, "none", 0.0)
    with pytest.raises(UserError, match="cannot be opened"):
        open_corpus("gopherx://host/shards", 15.0, "none", 0.0)
    handler.break_next = 1_000
    with pytest.raises(UserError, match=r"index\.json: cannot be read after several tries"):
        open_corpus(url, 15.0, "none", 0.0)
    handler.break_next, handler.ranges = 0, False
    with pytest.raises(UserError, match="does not serve parts of files"):
        open_index(url).read(0)
