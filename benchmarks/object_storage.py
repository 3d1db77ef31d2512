"""How much of its rate the loader keeps if every answer of an object store is delayed.

    python benchmarks/object_storage.py --out benchmarks/results/object-storage.json

Speech-like audio is packed into FLAC shards, which an HTTP server in another process serves with ranges. The loader
reads them through the URL without a delay and with 50 ms before every answer, alternating several times. The goal is
90% of the rate without a delay. A further case with a cache of whole shards shows the rate of later epochs.
"""

import argparse
import http.server
import json
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import soundfile  # noqa: E402
import torch  # noqa: E402

from sjepa.audio.augment import AugmentConfig  # noqa: E402
from sjepa.audio.io import SAMPLE_RATE  # noqa: E402
from sjepa.data.build import build_index  # noqa: E402
from sjepa.data.loader import BatchConfig, BatchReader, load, plan_batches  # noqa: E402
from sjepa.data.masking import MaskConfig  # noqa: E402
from sjepa.data.opening import open_corpus  # noqa: E402
from sjepa.data.shard_cache import ShardCache  # noqa: E402
from sjepa.data.shards import write_shards  # noqa: E402
from sjepa.speed.data import synthesize  # noqa: E402
from sjepa.speed.output import processor_name  # noqa: E402

BATCH = 120.0  # seconds: eight utterances


class Server(http.server.SimpleHTTPRequestHandler):
    """Files with ranges over connections that stay open, as object stores have them."""

    protocol_version = "HTTP/1.1"
    latency = 0.0

    def do_GET(self) -> None:
        time.sleep(self.latency)
        path = Path(self.translate_path(self.path))
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        with path.open("rb") as file:
            first, last = (int(asked[1]), int(asked[2])) if asked else (0, path.stat().st_size - 1)
            file.seek(first)
            content = file.read(last + 1 - first)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


def serve(folder: str, latency: float, port: Any) -> None:
    handler = type("Late", (Server,), {"latency": latency})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder)) as server:
        port.value = server.server_port
        server.serve_forever()


def start_server(folder: Path, latency: float) -> tuple[str, Any]:
    port = multiprocessing.Value("i", 0)
    process = multiprocessing.Process(target=serve, args=(str(folder), latency, port), daemon=True)
    process.start()
    while not port.value:
        time.sleep(0.01)
    return f"http://127.0.0.1:{port.value}", process


def measure(where: str, workers: int, seconds: float, cache: ShardCache | None = None) -> float:
    """Seconds of audio per second."""
    corpus = open_corpus(where, 15.0, "none", 0.0, shard_cache=cache)
    plan = plan_batches(corpus, BatchConfig(seconds=BATCH), seed=0)
    reader = BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=0)
    with closing(load(reader, plan, (0, 0), workers, torch.device("cpu"))) as batches:
        for _ in range(6 * workers):  # processes start and the first requests go out
            next(batches)
        began, audio = time.perf_counter(), 0.0
        while time.perf_counter() - began < seconds:
            audio += next(batches).waveforms.numel() / SAMPLE_RATE
        return audio / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before every answer")
    parser.add_argument("--utterances", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(folder / "user-cache")
        (folder / "audio").mkdir()
        for number in range(options.utterances):
            soundfile.write(folder / "audio" / f"{number:04d}.flac", synthesize(number), SAMPLE_RATE)
        build_index(
            [str(folder / "audio")],
            folder / "index",
            layout="folder",
            max_seconds=15.0,
            cut_transcribed=False,
        )
        write_shards(
            str(folder / "index"),
            folder / "shards",
            encoding="flac",
            shard_hours=0.25,
            seed=0,
            workers=options.workers,
        )
        servers = {"without latency": start_server(folder / "shards", 0.0)}
        servers["with latency"] = start_server(folder / "shards", options.latency)
        cache = ShardCache(folder / "shard-cache", 10**10)
        ways = {name: (url, None) for name, (url, _) in servers.items()}
        ways["with latency, cached shards"] = (servers["with latency"][0], cache)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, (url, kept) in ways.items():
                rates[name].append(measure(url, options.workers, options.seconds, kept))
                print(f"{name}: {rates[name][-1]:,.0f} s/s", flush=True)
        for _, process in servers.values():
            process.kill()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    results = {
        "command": f"python benchmarks/object_storage.py {' '.join(sys.argv[1:])}",
        "machine": {"processor": processor_name(), "cores": os.cpu_count(), "workers": options.workers},
        "latency_ms": options.latency * 1e3,
        "batch_seconds": BATCH,
        "audio_per_second": rates,
        "median": medians,
        "share_of_rate_without_latency": {name: value / medians["without latency"] for name, value in medians.items()},
    }
    print(json.dumps(results["share_of_rate_without_latency"], indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
