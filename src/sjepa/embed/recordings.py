"""Recordings to embed: which they are, and in which batches and windows they go through the encoder."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from sjepa import distributed
from sjepa.audio.io import SAMPLE_RATE, BadAudioError, read_audio, show_path
from sjepa.audio.stream import stream_audio
from sjepa.data.corpus import audio_files, check_header, first_of
from sjepa.embed.network import Network
from sjepa.embed.readout import Readout
from sjepa.embed.windows import WindowConfig, cut, join
from sjepa.embed.writing import Format, write_table
from sjepa.errors import UserError
from sjepa.model.frontend import STRIDE, frame_count
from sjepa.model.moments import moments_of
from sjepa.progress import Bar, bar, track

T = TypeVar("T")


@dataclass(frozen=True)
class Recording:
    path: str
    name: str
    """Where its output goes below the folder: its file's name, or its path below the folder that was given."""
    samples: int
    """At 16 kHz, by its header."""


@dataclass(frozen=True)
class Embedding:
    """Everything that decides what is written."""

    network: Network
    readout: Readout
    window: WindowConfig
    kind: Format
    batch_seconds: float
    about: dict[str, str]
    """Written into every file."""


@dataclass
class Clock:
    """Moves a bar by whole seconds of audio."""

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


def find_recordings(given: Sequence[Path], show: bool = True) -> tuple[list[Recording], list[str]]:
    """Audio of files and folders with its length, and why some cannot be used; each gets a name of its own."""
    refused: list[str] = []
    paths: dict[str, str] = {}
    for place in given:
        if not place.exists():
            raise UserError(f"there is no file or folder {show_path(place)}")
        found = audio_files(place, refused) if place.is_dir() else [str(place)]
        for path in found:
            name = os.path.relpath(path, place) if place.is_dir() else place.name
            if paths.setdefault(name, path) != path:
                both = f"{show_path(paths[name])} and {show_path(path)}"
                raise UserError(f"{both} would be written to one file: give the folder that holds both")
    with ThreadPoolExecutor() as pool:
        headers = list(
            track(pool.map(check_header, paths.values()), "Reading headers", len(paths), show and len(paths) > 1)
        )
    refused += [info for info in headers if isinstance(info, str)]
    sound = zip(paths.items(), headers, strict=True)
    recordings = [Recording(path, name, info.samples) for (name, path), info in sound if not isinstance(info, str)]
    if not recordings:
        raise UserError(f"no usable audio: {first_of(refused)}" if refused else "no audio in what was given")
    return recordings, refused


def embed(recordings: Sequence[Recording], out: Path, plan: Embedding, skip: bool, show: bool = True) -> Outcome:
    """Write a file for each recording below `out`; with `skip`, those that are there already are left as they are.

    Ranks share the batches and the long recordings, so that each file is written once and does not depend on their
    number. The outcome is this rank's.
    """
    outcome = Outcome()

    def target(recording: Recording) -> Path:
        return out / f"{recording.name}.{plan.kind}"

    # The main rank looks before any rank writes.
    done = distributed.broadcast_object({r.name for r in recordings if skip and target(r).is_file()})
    left = {r.name for r in recordings} - done
    short = [r for r in recordings if frame_count(r.samples) <= plan.window.frames]
    long = sorted(
        (r for r in recordings if r.name in left and frame_count(r.samples) > plan.window.frames),
        key=lambda r: (-r.samples, r.name),
    )
    # What is there already stays in its batch: sums of a batch of another size differ in the last bit.
    batches = [b for b in batches_by_length(short, plan.batch_seconds) if any(r.name in left for r in b)]
    batches, long = share(batches), share(long)
    seconds = sum(r.samples for batch in (*batches, long) for r in batch if r.name in left) // SAMPLE_RATE
    with bar("Seconds embedded", seconds, show=show) as progress:
        clock = Clock(progress)

        def write(recording: Recording, frames: Callable[[], Iterable[Tensor]]) -> None:
            about = plan.about | {"file": show_path(recording.name)}
            try:
                rows = write_table(target(recording), plan.kind, plan.readout(plan.network, frames()), about)
            except BadAudioError as error:
                path = show_path(recording.path)
                refuse(str(error) if str(error).startswith(path) else f"{path}: {error}")
                return
            outcome.rows += rows
            outcome.recordings += 1
            outcome.seconds += recording.samples / SAMPLE_RATE

        def refuse(reason: str) -> None:
            outcome.refused.append(reason)
            progress.say(f"left out: {reason}")

        for batch in batches:
            waveforms, read = [], []
            for recording in batch:
                try:
                    samples = read_audio(recording.path)
                except BadAudioError as error:
                    if recording.name in left:
                        refuse(str(error))
                    continue
                if not samples.any():
                    note_silence(recording, progress)
                waveforms.append(samples)
                read.append(recording)
            features = plan.network.features(waveforms) if waveforms else []
            for recording, x in zip(read, features, strict=True):
                if recording.name in left:
                    write(recording, lambda x=x: [x])  # type: ignore[misc]
            clock.advance(sum(r.samples for r in batch if r.name in left))
        for recording in long:
            write(recording, lambda r=recording: frames_of(r, plan, clock))  # type: ignore[misc]
    return outcome


def share(items: list[T]) -> list[T]:
    """This rank's share of a list that is ordered by size."""
    return items[distributed.rank() :: distributed.world_size()]


def batches_by_length(recordings: Sequence[Recording], seconds: float) -> Iterator[list[Recording]]:
    """Recordings of like length together, the longest first; a batch with its padding stays within the seconds."""
    batch: list[Recording] = []
    for recording in sorted(recordings, key=lambda r: (-r.samples, r.name)):
        if batch and (len(batch) + 1) * batch[0].samples > seconds * SAMPLE_RATE:
            yield batch
            batch = []
        batch.append(recording)
    if batch:
        yield batch


def frames_of(recording: Recording, plan: Embedding, clock: Clock) -> Iterator[Tensor]:
    """Frames of a long recording, in pieces: decoded, encoded and joined as they come."""
    name = show_path(os.path.basename(recording.name))
    clock.progress.advance(0, note=f"first pass  {name}")
    moments = moments_of(stream_audio(recording.path))
    clock.progress.advance(0, note=name)

    def encoded() -> Iterator[tuple[int, Tensor]]:
        done, silent = 0, True
        for window in cut(stream_audio(recording.path), plan.window):
            silent = silent and not window.samples.any()
            yield window.start, plan.network.window_features(window.samples, moments)
            reached = window.start * STRIDE + len(window.samples)
            clock.advance(reached - done)
            done = reached
        if silent:
            note_silence(recording, clock.progress)

    return join(encoded(), plan.window)


def note_silence(recording: Recording, progress: Bar) -> None:
    """Warn of a recording whose samples are all zero: it has features too, but they mean little."""
    progress.say(f"{show_path(recording.name)}: silence, every sample is zero; its output means little")
