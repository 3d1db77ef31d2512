"""Shards: a corpus packed into tar files that are read in sequence, with an index to reach any utterance directly.

A shard is a WebDataset tar: for each utterance NUMBER.flac (or .wav) and NUMBER.json with its id and labels. The
utterances are shuffled once over all shards and sorted by length within a shard, so that neighbours are in the same
bucket and a batch reads contiguous bytes.
"""

import hashlib
import io
import json
import shlex
import signal
import tarfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from sjepa.audio.encode import AudioFormat, encode_audio
from sjepa.audio.io import SAMPLE_RATE, BadAudioError
from sjepa.data.corpus import Corpus
from sjepa.data.index import Row, merge_parts, open_index, read_labels, read_table, report_write_errors, write_part
from sjepa.data.index_folder import IndexFolder
from sjepa.data.outages import collect
from sjepa.data.workers import end_with_parent
from sjepa.errors import UserError
from sjepa.files import atomic_file
from sjepa.locks import lock_folder
from sjepa.progress import Bar, bar

Encoding = Literal["flac", "int16"]
TAR_HEADER, WAV_HEADER = 512, 44  # bytes before a member's data, and before its samples

_source: Corpus | None = None  # in a worker process: the corpus that it encodes


def write_shards(
    source: str, out: Path, *, encoding: Encoding, shard_hours: float, seed: int, workers: int
) -> dict[str, Any]:
    """Pack an index into shards, or continue after an interruption. Returns the contents of index.json."""
    index = IndexFolder(source)
    if not index.exists:
        if not Path(source).exists():
            raise UserError(f"there is no folder {source}")
        name = f"{Path(source).resolve().name}-index"
        raise UserError(f"{source} is not an index: make one with `sjepa index {shlex.quote(source)} --out {name}`")
    settings = {"shards": encoding, "shard_hours": shard_hours, "seed": seed, "of": index.facts()["fingerprint"]}
    with lock_folder(out):
        return pack(source, out, settings, workers)


def pack(source: str, out: Path, settings: dict[str, Any], workers: int) -> dict[str, Any]:
    """The work of `write_shards`, which has locked the folder."""
    index = IndexFolder(out)
    if index.exists:
        return index.require_same(settings)
    index.require_ours(settings)
    corpus, labels = open_index(source), read_labels(source)
    encoding: Encoding = settings["shards"]
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
    parts = []
    with report_write_errors(out):
        index.begin(settings)
        with (
            ProcessPoolExecutor(workers, initializer=open_source, initargs=(source,)) as pool,
            bar("Writing shards", len(corpus)) as progress,
        ):
            for number, utterances in enumerate(
                assign_shards(corpus.length, settings["shard_hours"], settings["seed"])
            ):
                path, part = out / f"{number:06d}.tar", index.part(f"{key}-{number:06d}")
                if part.exists() and (path.exists() or not len(read_table(part))):
                    progress.skip(len(utterances))
                else:
                    write_shard(path, part, utterances, corpus, labels, encoding, pool, progress)
                check_shard(path, part)
                parts.append(part)
        return merge_parts(index, parts, {"root": "."} | settings)


def assign_shards(length: np.ndarray, shard_hours: float, seed: int) -> list[np.ndarray]:
    """Assign utterances to shards: shuffled over all shards, then sorted by length within a shard."""
    order = np.random.default_rng((seed, len(length))).permutation(len(length))
    hours = np.cumsum(length[order], dtype=np.int64) / SAMPLE_RATE / 3600
    ends = np.searchsorted(hours, np.arange(shard_hours, hours[-1], shard_hours))
    return [shard[np.argsort(length[shard], kind="stable")] for shard in np.split(order, ends) if len(shard)]


def write_shard(
    path: Path,
    part: Path,
    utterances: np.ndarray,
    corpus: Corpus,
    labels: Any,
    encoding: Encoding,
    pool: ProcessPoolExecutor,
    progress: Bar,
) -> None:
    """Write one tar and its part of the index. Damaged utterances are left out and listed.

    Without any utterance there is no tar, so that a call without usable audio leaves nothing behind.
    """
    rows: list[Row] = []
    refused: list[str] = []
    # For a WAV the index points at the samples, so that they are read without a decoder.
    audio_format: AudioFormat
    audio_format, skipped = ("FLAC", 0) if encoding == "flac" else ("WAV", WAV_HEADER)
    try:
        with (
            atomic_file(path) as unfinished,
            unfinished.open("wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            encoded = collect(
                pool, partial(encode_utterance, audio_format), utterances.tolist(), corpus.place, chunksize=8
            )
            for utterance, result in zip(utterances.tolist(), encoded, strict=True):
                progress.advance()
                if isinstance(result, str):
                    refused.append(result)
                    continue
                content, samples = result
                known = {name: labels[name][utterance].as_py() for name in labels.column_names}
                name = f"{path.stem}-{len(rows):06d}"
                offset = add_member(tar, file, f"{name}.{audio_format.lower()}", content)
                add_member(tar, file, f"{name}.json", json.dumps(known | {"samples": samples}).encode())
                rows.append(Row(path.name, offset + skipped, len(content) - skipped, 0, samples, **known))
    except BrokenProcessPool:
        raise UserError("an encoding process died, perhaps for lack of memory: try fewer --workers") from None
    if not rows:
        path.unlink()
    write_part(part, rows, refused)


def check_shard(path: Path, part: Path) -> None:
    """Refuse a shard whose size, or first or last member, differs from its part of the index."""
    table = read_table(part)
    if not len(table):
        return
    offsets, sizes = table["byte_offset"].to_numpy(), table["byte_size"].to_numpy()
    with path.open("rb") as file:
        sound = int((offsets + sizes).max()) <= path.stat().st_size
        for row in {0, len(table) - 1}:
            file.seek(int(offsets[row]) - int(offsets[0]) % TAR_HEADER - TAR_HEADER)
            sound = sound and file.read(TAR_HEADER).startswith(f"{path.stem}-{row:06d}.".encode())
    if not sound:
        raise UserError(f"{path} does not match {part}: delete {path.parent} and start again")


def add_member(tar: tarfile.TarFile, file: BinaryIO, name: str, content: bytes) -> int:
    """Append a file to a tar. Returns the offset of its bytes."""
    offset = file.tell() + TAR_HEADER
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    return offset


def open_source(source: str) -> None:
    """Open the corpus in a worker process."""
    global _source
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # without the handler of the main process
    end_with_parent()
    _source = open_index(source)


def encode_utterance(audio_format: AudioFormat, utterance: int) -> tuple[bytes, int] | BadAudioError:
    """In a worker process: an utterance as the bytes of a file, and its samples."""
    assert _source is not None
    try:
        samples = _source.read(utterance)
    except BadAudioError as error:
        return error
    return encode_audio(samples, audio_format), len(samples)
