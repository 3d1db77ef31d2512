"""Find the recordings to embed, and encode them in batches or windows."""

import hashlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import Tensor

from sjepa import distributed
from sjepa.audio.frames import STRIDE, frame_count
from sjepa.audio.io import SAMPLE_RATE, BadAudioError, read_audio, show_path
from sjepa.audio.stream import stream_audio
from sjepa.data.corpus import LOOKED_FOR, audio_files, check_header, describe_refused
from sjepa.data.index_folder import IndexFolder
from sjepa.data.layouts import SCANNED, detect_layout
from sjepa.embed.network import Network
from sjepa.embed.readout import NotFiniteError, Readout
from sjepa.embed.tables import Format, read_metadata, write_table
from sjepa.embed.window_config import WindowConfig
from sjepa.embed.windows import cut_windows, join_windows
from sjepa.errors import UserError
from sjepa.lookahead import look_ahead
from sjepa.model.moments import measure_moments
from sjepa.progress import Bar, bar, track

T = TypeVar("T")
SOURCE = "source"  # in the metadata of an output file: the hash of the recording
HASHED = 1 << 16  # bytes of a recording that are hashed at each of three places
AHEAD = 2  # batches that are decoded while one is encoded
LONGEST_NAME = 255 - len(".safetensors")  # bytes
Decoding = tuple[list["Recording"], list[Future[tuple[str, np.ndarray]]]]
"""A batch, and the hash and the audio of each recording."""


@dataclass(frozen=True)
class Recording:
    path: str
    name: str
    """Path of its output below the output folder: its file name, or its path below the given folder."""
    samples: int
    """Number of samples at 16 kHz, according to the header."""


@dataclass(frozen=True)
class Embedding:
    """All settings of an embedding."""

    network: Network
    readout: Readout
    window: WindowConfig
    kind: Format
    batch_seconds: float
    about: dict[str, str]
    """Metadata that is written to every file."""

    def file(self, out: Path, recording: "Recording") -> Path:
        """The file for a recording."""
        return output_file(out, recording, self.kind)


@dataclass
class Clock:
    """Advances a progress bar by whole seconds of audio."""

    progress: Bar
    samples: int = 0

    def advance(self, samples: int) -> None:
        before, self.samples = self.samples, self.samples + samples
        self.progress.advance(self.samples // SAMPLE_RATE - before // SAMPLE_RATE)


@dataclass
class Outcome:
    recordings: int = 0
    rows: int = 0
    seconds: float = 0.0
    refused: list[str] = field(default_factory=list)

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.recordings + other.recordings,
            self.rows + other.rows,
            self.seconds + other.seconds,
            self.refused + other.refused,
        )


def find_recordings(given: Sequence[Path]) -> tuple[list[Recording], list[str]]:
    """Find the audio in files and folders. Returns the recordings, and the reasons why others cannot be used."""
    refused: list[str] = []
    paths: dict[str, str] = {}
    for place in given:
        if not place.exists():
            raise UserError(f"there is no file or folder {show_path(place)}")
        found = list(audio_files(place, refused)) if place.is_dir() else [str(place)]
        if not found and (IndexFolder(place).exists or detect_layout(str(place)) not in SCANNED):
            raise UserError(f"{show_path(place)} lists audio elsewhere: embed takes audio files, or folders of them")
        for path in found:
            name = os.path.relpath(path, place) if place.is_dir() else place.name
            if len(os.fsencode(os.path.basename(name))) > LONGEST_NAME:
                refused.append(
                    f"{show_path(path)}: its name is too long for an output file: at most {LONGEST_NAME} bytes"
                )
                continue
            if paths.setdefault(name, path) != path:
                both = f"{show_path(paths[name])} and {show_path(path)}"
                raise UserError(f"{both} would be written to the same file: give the folder that holds both")
    with ThreadPoolExecutor() as pool:
        checked = pool.map(check_header, paths.values())
        headers = list(track(checked, "Reading headers", len(paths)) if len(paths) > 1 else checked)
    refused += [info for info in headers if isinstance(info, str)]
    sound = zip(paths.items(), headers, strict=True)
    recordings = [Recording(path, name, info.samples) for (name, path), info in sound if not isinstance(info, str)]
    if not recordings:
        raise UserError(
            f"no usable audio: {describe_refused(refused)}"
            if refused
            else f"no audio in {' and '.join(map(show_path, given))}: {LOOKED_FOR}"
        )
    return recordings, refused


def hash_source(path: str) -> str:
    """Return a hash of a file's size, start, middle and end: it tells recordings apart, wherever they are stored."""
    size = os.path.getsize(path)
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for place in (0, size // 2, max(0, size - HASHED)):
            file.seek(place)
            digest.update(file.read(HASHED))
    return digest.hexdigest()[:16]


def check_sources(recordings: Sequence[Recording], out: Path, kind: Format) -> None:
    """Raise UserError if an existing file has the output of another recording. Older files do not name their source."""

    def is_own(recording: Recording) -> bool:
        source = read_metadata(output_file(out, recording, kind), kind).get(SOURCE)
        return source is None or source == hash_source(recording.path)

    with ThreadPoolExecutor() as pool:
        for recording, own in zip(recordings, pool.map(is_own, recordings), strict=True):
            if not own:
                file = show_path(output_file(out, recording, kind))
                raise UserError(
                    f"{file} has the output of another recording than {show_path(recording.path)}: choose another "
                    "--out, or replace it with --force"
                )


def output_file(out: Path, recording: Recording, kind: Format) -> Path:
    return out / f"{recording.name}.{kind}"


def embed(recordings: Sequence[Recording], out: Path, plan: Embedding, skip: bool) -> Outcome:
    """Write one file per recording below `out`. With `skip`, existing files are kept.

    The ranks share the batches and the long recordings. Each file is written once, and its content does not depend on
    the number of ranks. The outcome counts the files of this rank.
    """
    # The main rank looks for existing files before any rank writes.
    done = distributed.broadcast_object({r.name for r in recordings if skip and plan.file(out, r).is_file()})
    left = {r.name for r in recordings} - done
    short = [r for r in recordings if frame_count(r.samples) <= plan.window.frames]
    long = sorted(
        (r for r in recordings if r.name in left and frame_count(r.samples) > plan.window.frames),
        key=lambda r: (-r.samples, r.name),
    )
    # Existing recordings stay in their batch: another batch size would change the last bit of the others.
    batches = [b for b in batches_by_length(short, plan.batch_seconds) if any(r.name in left for r in b)]
    batches, long = take_share(batches), take_share(long)
    seconds = sum(r.samples for batch in (*batches, long) for r in batch if r.name in left) // SAMPLE_RATE
    outcome = Outcome()
    with bar("Seconds embedded", seconds) as progress:
        clock = Clock(progress)
        with closing(read_ahead(batches)) as decoding:
            for batch, audio in decoding:
                outcome += embed_batch(batch, audio, left, out, plan, progress)
                clock.advance(sum(r.samples for r in batch if r.name in left))
        for recording in long:
            try:
                source = hash_source(recording.path)
            except OSError as error:
                outcome += refuse(f"{show_path(recording.path)}: {error.strerror}", progress)
                continue
            outcome += write_features(recording, source, encode_long(recording, plan, clock), out, plan, progress)
    return outcome


def read_ahead(batches: Sequence[list[Recording]]) -> Generator[Decoding, None, None]:
    """Yield each batch, while threads decode the next ones."""
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="decode")
    started = ((batch, [pool.submit(read_recording, recording.path) for recording in batch]) for batch in batches)
    try:
        yield from look_ahead(started, AHEAD)
    finally:
        pool.shutdown(cancel_futures=True)


def read_recording(path: str) -> tuple[str, np.ndarray]:
    """Return the hash and the audio of a recording. The hash is from before, in case the file is being replaced."""
    try:
        return hash_source(path), read_audio(path)
    except OSError as error:
        raise BadAudioError(f"{show_path(path)}: {error.strerror}") from error


def embed_batch(
    batch: list[Recording],
    audio: list[Future[tuple[str, np.ndarray]]],
    left: set[str],
    out: Path,
    plan: Embedding,
    progress: Bar,
) -> Outcome:
    """Encode the recordings of a batch together, and write the files of those in `left`."""
    outcome, waveforms, read = Outcome(), [], []
    for recording, decoded in zip(batch, audio, strict=True):
        try:
            source, samples = decoded.result()
        except BadAudioError as error:
            if recording.name in left:
                outcome += refuse(str(error), progress)
            continue
        if not samples.any():
            note_silence(recording, progress)
        waveforms.append(samples)
        read.append((recording, source))
    features = plan.network.features(waveforms) if waveforms else []
    for (recording, source), x in zip(read, features, strict=True):
        if recording.name in left:
            outcome += write_features(recording, source, [x], out, plan, progress)
    return outcome


def write_features(
    recording: Recording, source: str, pieces: Iterable[Tensor], out: Path, plan: Embedding, progress: Bar
) -> Outcome:
    """Write the file of a recording, given its features in pieces."""
    try:
        about = plan.about | {"file": show_path(recording.name), SOURCE: source}
        rows = write_table(plan.file(out, recording), plan.kind, plan.readout(plan.network, pieces), about)
    except NotFiniteError as error:
        return refuse(f"{show_path(recording.path)}: {error}", progress)
    except BadAudioError as error:
        return refuse(str(error), progress)
    return Outcome(recordings=1, seconds=recording.samples / SAMPLE_RATE, rows=rows)


def refuse(reason: str, progress: Bar) -> Outcome:
    progress.say(f"left out: {reason}")
    return Outcome(refused=[reason])


def take_share(items: list[T]) -> list[T]:
    """This rank's part of a list that is sorted by size."""
    return items[distributed.rank() :: distributed.world_size()]


def batches_by_length(recordings: Sequence[Recording], seconds: float) -> Iterator[list[Recording]]:
    """Batch recordings of similar length, longest first. A batch with its padding has at most `seconds` of audio."""
    batch: list[Recording] = []
    for recording in sorted(recordings, key=lambda r: (-r.samples, r.name)):
        if batch and (len(batch) + 1) * batch[0].samples > seconds * SAMPLE_RATE:
            yield batch
            batch = []
        batch.append(recording)
    if batch:
        yield batch


def encode_long(recording: Recording, plan: Embedding, clock: Clock) -> Iterator[Tensor]:
    """Yield the frames of a long recording in pieces, while it is decoded and encoded in windows."""
    name = show_path(os.path.basename(recording.name))
    clock.progress.advance(0, note=f"first pass  {name}")
    moments = measure_moments(stream_audio(recording.path))
    clock.progress.advance(0, note=name)

    def encode_windows() -> Iterator[tuple[int, Tensor]]:
        done, silent = 0, True
        for window in cut_windows(stream_audio(recording.path), plan.window):
            silent = silent and not window.samples.any()
            yield window.start, plan.network.window_features(window.samples, moments)
            reached = window.start * STRIDE + len(window.samples)
            clock.advance(reached - done)
            done = reached
        if silent:
            note_silence(recording, clock.progress)

    yield from join_windows(encode_windows(), plan.window)


def note_silence(recording: Recording, progress: Bar) -> None:
    """Warn about a recording whose samples are all zero: its features carry no information."""
    progress.say(f"{show_path(recording.name)}: silence, every sample is zero; its output carries no information")
