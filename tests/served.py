"""A small corpus as an index and as shards, and a server for such folders that can break."""

import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import babble

from sjepa.audio.augment import AugmentConfig
from sjepa.data import storage, waiting
from sjepa.data.build import build_index
from sjepa.data.index import open_index, read_labels
from sjepa.data.loader import BatchReader
from sjepa.data.masking import MaskConfig
from sjepa.data.opening import open_corpus
from sjepa.data.sampler import BatchPlan
from sjepa.data.shards import Encoding, write_shards


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(24):
        soundfile.write(folder / f"{number:02d}.wav", babble(1.0 + 0.05 * number, number), 16_000)
    (folder / "list.jsonl").write_text(
        "\n".join(json.dumps({"path": f"{n:02d}.wav", "speaker": f"s{n % 3}", "text": f"text {n}"}) for n in range(24))
    )
    out = tmp_path_factory.mktemp("made") / "index"
    build_index([str(folder / "list.jsonl")], out, layout="auto", max_seconds=15.0, cut_transcribed=False)
    return out


def shards(index: Path, out: Path, encoding: Encoding = "flac", hours: float = 10 / 3600) -> dict[str, Any]:
    return write_shards(str(index), out, encoding=encoding, shard_hours=hours, seed=0, workers=1)


@pytest.fixture(scope="module")
def flac(index: Path) -> Path:
    out = index.parent / "flac"
    shards(index, out)
    return out


def by_id(where: str) -> dict[str, np.ndarray]:
    corpus = open_index(where)
    return {name: corpus.read(n) for n, name in enumerate(read_labels(where)["id"].to_pylist())}


def reader_of(where: str) -> tuple[BatchReader, BatchPlan]:
    corpus = open_corpus(where, 15.0, "none", 0.0)
    plan = BatchPlan(corpus.length, seconds=6.0, buckets=(1.0,), seed=0, block=corpus.block)
    return BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=0, rank=0, world_size=1), plan


class Handler(http.server.SimpleHTTPRequestHandler):
    """A file server with ranges, which can break in set ways."""

    break_next = 0  # so many answers stop half-way
    ranges = True
    latency = 0.0  # seconds before an answer
    refuse = 0  # the status of every answer, if not 0
    refuse_files: dict[str, int]  # the status of every answer for these files
    gate: threading.Barrier | None = None  # answers wait until so many requests are there
    requests: list[str]

    def do_GET(self) -> None:
        time.sleep(self.latency)
        if self.gate is not None:
            self.gate.wait()
        path = Path(self.translate_path(self.path))
        type(self).requests.append(f"{path.name} {self.headers.get('Range', '')}")
        refused = self.refuse or self.refuse_files.get(path.name, 0)
        if refused or not path.is_file():
            self.send_error(refused or 404)
            return
        content = path.read_bytes()
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        partial_answer = asked is not None and self.ranges
        if asked is not None and self.ranges:
            content = content[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(206 if partial_answer else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if type(self).break_next:
            type(self).break_next -= 1
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


Serve = Callable[[Path], tuple[str, type[Handler]]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(waiting, "FIRST_WAIT", 0.01)
    storage.failing_urls.clear()
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(folder: Path) -> tuple[str, type[Handler]]:
        handler = type("Breakable", (Handler,), {"requests": [], "refuse_files": {}})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))  # type: ignore[arg-type]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", handler

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
