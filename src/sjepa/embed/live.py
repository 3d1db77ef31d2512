"""`sjepa embed --live`: process a stream of audio while it arrives."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from torch import Tensor

from sjepa.audio.frames import STRIDE, describe_too_short
from sjepa.audio.io import SAMPLE_RATE, show_path
from sjepa.audio.stream import stream_audio
from sjepa.embed.network import Network
from sjepa.embed.readout import Columns, Readout
from sjepa.errors import UserError
from sjepa.model.stream import FeatureStream
from sjepa.model.stream_config import StreamConfig
from sjepa.progress import say
from sjepa.stopping import StoppedError, nothing_unsaved, stop_requests

STDIN = Path("-")


def read_pcm(stream: IO[bytes]) -> Iterator[np.ndarray]:
    """Read raw signed 16-bit little-endian mono samples at 16 kHz, in blocks as they arrive."""
    left = b""
    while data := left + stream.read(2 * STRIDE):
        if len(data) == 1:  # half a sample at the end
            return
        whole = len(data) // 2 * 2
        yield np.frombuffer(data[:whole], "<i2").astype(np.float32) / 32768.0
        left = data[whole:]


def read_until_stopped(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield blocks until they end or a signal ends the stream, so that what was streamed is kept.

    A second Ctrl-C aborts. Other signals are ignored after the first, until the process exits.
    """
    blocks, received = iter(blocks), False
    with stop_requests("at the end of the audio received so far", until_exit=True):
        try:
            while True:
                with nothing_unsaved():  # a signal need not wait for audio
                    block = next(blocks, None)
                if block is None:
                    return
                received = True
                yield block
        except StoppedError:
            if not received:
                raise


def read_file(path: Path) -> Iterator[np.ndarray]:
    """Read a recording in blocks as small as those of a live stream."""
    for block in stream_audio(path):
        for start in range(0, len(block), STRIDE):
            yield block[start : start + STRIDE]


def embed_live(source: Path, network: Network, readout: Readout, config: StreamConfig) -> Iterator[Columns]:
    """Yield the columns of a stream in chunks, and print the speed at the end."""
    if network.reader == "mixture":
        info = network.encoder.clusters.info
        if info.centred or info.layer is None:
            reason = "is centred on whole utterances" if info.centred else "reads features of the audio itself"
            raise UserError(f"--live: the mixture {reason}; use --what head, or --what units --from head")
    if not str(source) == str(STDIN) and not source.is_file():
        raise UserError(f"--live: there is no file {show_path(source)}; use - to read raw 16-bit samples from stdin")
    # A file can be read again, so an interruption of it leaves no part of its output behind.
    blocks = read_until_stopped(read_pcm(sys.stdin.buffer)) if str(source) == str(STDIN) else read_file(source)
    stream = FeatureStream(network.encoder, config, network.states)
    say(f"Latency: at most {config.latency:.2f} s, plus the computation", aside=True)
    pace = Pace()
    yield from readout(network, pace.measure(stream, blocks))
    if not stream.done:
        raise UserError(f"--live: {describe_too_short(stream.samples)}")
    seconds = stream.samples / SAMPLE_RATE
    say(f"Processed {seconds:,.1f} s in {pace.busy:,.1f} s: {pace.busy / seconds:.2f} of real time", aside=True)


class Pace:
    """Measures the time spent on computation, without the wait for audio."""

    def __init__(self) -> None:
        self.busy = 0.0

    def measure(self, stream: FeatureStream, blocks: Iterable[np.ndarray]) -> Iterator[Tensor]:
        for block in blocks:
            start = time.perf_counter()
            frames = stream.push(block)
            self.busy += time.perf_counter() - start
            if len(frames):
                yield frames
        start = time.perf_counter()
        frames = stream.finish()
        self.busy += time.perf_counter() - start
        if len(frames):
            yield frames


def print_lines(pieces: Iterable[Columns]) -> int:
    """Print one JSON object per row as soon as it is ready. Returns the number of rows."""
    rows = 0
    for columns in pieces:
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            print(json.dumps(dict(zip(columns, row, strict=True))))
            rows += 1
        sys.stdout.flush()
    return rows
