"""A corpus: utterances in audio files, as columns. `scan_folder` finds one in a folder."""

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sjepa.audio.frames import RECEPTIVE_FIELD, describe_too_short
from sjepa.audio.io import (
    EXTENSIONS,
    OTHER_EXTENSIONS,
    SAMPLE_RATE,
    AudioInfo,
    BadAudioError,
    SilentAudioError,
    read_header,
    read_int16,
    show_path,
)
from sjepa.counts import format_count
from sjepa.data.outages import collect
from sjepa.data.shard_cache import ShardCache
from sjepa.data.storage import ByteRange, is_url, read_bytes
from sjepa.errors import UserError
from sjepa.files import require_folder
from sjepa.progress import say, track

LOOKED_FOR = f"looked for {', '.join(sorted(EXTENSIONS))}"
REQUESTS = 32  # concurrent requests while a corpus behind URLs is decoded into memory: most of them wait


@dataclass(frozen=True)
class Corpus:
    """Utterances as columns. An utterance is a stretch of a recording. Samples are counted at 16 kHz."""

    paths: Sequence[str]
    file: np.ndarray  # utterance -> index into paths
    start: np.ndarray  # first sample of the utterance in its recording
    length: np.ndarray  # samples
    byte_offset: np.ndarray | None = None  # where the recording lies in its file (a tar), if it is not the whole file
    byte_size: np.ndarray | None = None  # 0: the whole file
    raw: bool = False
    """The bytes are plain int16 samples."""
    block: int = 1
    """This many neighbours stay together in a batch and are read in one request. Shards are already shuffled."""
    refused: list[str] = field(default_factory=list)
    """Why a file, or some of its pieces, was left out: each file and reason once."""
    audio: list[np.ndarray | str] | None = None
    """If the corpus is in memory: the int16 samples of each utterance, or the reason why it cannot be used. Digital
    silence has no samples."""
    identity: str = ""
    """The fingerprint in the index."""
    is_cut: bool = False
    """Whether it comes from an index or shards, whose long recordings are already cut."""
    shard_cache: ShardCache | None = None
    """The cache on disk for shards behind URLs."""

    def __len__(self) -> int:
        return len(self.length)

    @property
    def hours(self) -> float:
        return float(self.length.sum(dtype=np.int64)) / SAMPLE_RATE / 3600

    @property
    def shares(self) -> tuple[tuple[int, float], ...]:
        """Utterances, and the share of them that an epoch uses."""
        return ((len(self), 1.0),)

    @property
    def corpora(self) -> tuple["Corpus", ...]:
        """This corpus alone. A `CorpusMix` has several."""
        return (self,)

    def fingerprint(self) -> str:
        """A hash that changes if a file is added, removed, renamed or changes length. The folder may move."""
        if self.identity:
            return self.identity
        root = os.path.commonpath({os.path.dirname(path) for path in self.paths}) if self.paths else ""
        names = "\n".join(os.path.relpath(path, root) for path in self.paths)
        digest = hashlib.sha256(names.encode(errors="surrogateescape"))
        for column in (self.file, self.start, self.length):
            digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
        return digest.hexdigest()[:16]

    def place(self, utterance: int) -> ByteRange:
        """Where the bytes of the recording of an utterance are."""
        path = self.paths[self.file[utterance]]
        if self.byte_offset is None or self.byte_size is None:
            return ByteRange(path)
        size = int(self.byte_size[utterance])
        if self.shard_cache is not None and size and is_url(path):
            path = self.shard_cache.find(path, self.identity)
        return ByteRange(path, int(self.byte_offset[utterance]), size)

    def name(self, utterance: int) -> str:
        """The name of an utterance for messages."""
        path = show_path(self.paths[self.file[utterance]])
        inside = self.byte_size is not None and self.byte_size[utterance]
        return f"{path} (utterance {utterance})" if inside else path

    def read(self, utterance: int, start: int = 0, samples: int | None = None) -> np.ndarray:
        """Int16 samples of an utterance, or of a stretch of it; refuses digital silence."""
        length = int(self.length[utterance])
        samples = length - start if samples is None else samples
        if self.audio is not None:
            whole = self.audio[utterance]
            if isinstance(whole, str):
                raise BadAudioError(whole)
            decoded = whole[start : start + samples]
        else:
            decoded = self.decode(utterance, int(self.start[utterance]) + start, samples)
        if not decoded.any():
            raise SilentAudioError(f"{self.name(utterance)}: silence, every sample is zero")
        return decoded[:samples] if len(decoded) >= samples else np.pad(decoded, (0, samples - len(decoded)))

    def is_piece(self, utterance: int) -> bool:
        """Whether this is a piece of a recording that continues in the previous or next utterance."""
        neighbours = [other for other in (utterance - 1, utterance + 1) if 0 <= other < len(self)]
        return any(self.place(other) == self.place(utterance) for other in neighbours)

    def decode(self, utterance: int, start: int, samples: int) -> np.ndarray:
        place = self.place(utterance)
        if min(place.offset, place.size, start) < 0:
            raise BadAudioError(f"{show_path(place.path)}: the index points before its beginning; rebuild it")
        if self.raw:
            stretch = ByteRange(place.path, place.offset + 2 * start, 2 * samples)
            return np.frombuffer(read_bytes(stretch), dtype="<i2")
        if not place.size and not is_url(place.path):
            return read_int16(place.path, start, samples)
        return read_int16(io.BytesIO(read_bytes(place)), start, samples, self.name(utterance))

    def select(self, kept: np.ndarray, **changes: object) -> "Corpus":
        columns = ("file", "start", "length", "byte_offset", "byte_size")
        chosen = {name: column[kept] for name in columns if (column := getattr(self, name)) is not None}
        return replace(self, **chosen, **changes)  # type: ignore[arg-type]


def audio_files(folder: Path, refused: list[str]) -> Iterator[str]:
    """Audio files below a folder in a stable order. Links are followed once; unreadable folders are refused.

    Audio of types that are not read is refused too, all of it in one line.
    """
    visited = set()
    others: Counter[str] = Counter()

    def refuse(error: OSError) -> None:
        refused.append(f"{show_path(error.filename)}: the folder cannot be read ({error.strerror})")

    for where, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        status = os.stat(where)
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders.sort()
        for name in sorted(files):
            extension = Path(name).suffix.lower()
            if extension in EXTENSIONS:
                yield os.path.join(where, name)
            elif extension in OTHER_EXTENSIONS:
                others[extension] += 1
    if others:
        refused.append(describe_others(folder, others))


def list_audio(folder: Path) -> list[Path]:
    """Return the audio files below a folder and print what is left out. Raise UserError if there is no folder."""
    require_folder(folder)
    refused: list[str] = []
    found = [Path(path) for path in audio_files(folder, refused)]
    for reason in refused:
        say(f"left out: {reason}")
    return found


def describe_others(folder: Path, counts: Mapping[str, int]) -> str:
    """The reason why audio of types that are not read is refused."""
    found = ", ".join(format_count(count, f"{extension} file") for extension, count in sorted(counts.items()))
    return f"{show_path(folder)}: {found} cannot be read: convert to wav or flac first, for example with ffmpeg"


def make_header_pool() -> ThreadPoolExecutor:
    """Return threads that read headers of files. They mostly wait for the disk, so there are more than cores."""
    return ThreadPoolExecutor(min(16, 4 * (os.cpu_count() or 1)))


def scan_folder(folder: str | Path, max_seconds: float) -> Corpus:
    """Find the audio below a folder and read its headers. Long files become equal pieces of at most `max_seconds`."""
    folder = Path(folder)
    if not folder.exists():
        raise UserError(f"there is no folder {folder}")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder of audio")
    refused: list[str] = []
    paths = list(audio_files(folder, refused))
    if not paths:
        tars = (
            f"; its tar files need an index: sjepa index {folder}/*.tar --out corpus"
            if any(folder.glob("*.tar"))
            else ""
        )
        raise UserError(f"no audio in {folder}: {refused[0] if refused else LOOKED_FOR}{tars}")
    limit = round(max_seconds * SAMPLE_RATE)
    kept: list[str] = []
    pieces_of_files: list[tuple[int, int, int]] = []  # file, start, length
    with make_header_pool() as pool:
        headers = track(pool.map(check_header, paths), "Reading headers", len(paths))
        for path, info in zip(paths, headers, strict=True):
            if isinstance(info, str):
                refused.append(info)
                continue
            pieces = -(-info.samples // limit)
            size = info.samples // pieces
            pieces_of_files += [(len(kept), size * piece, size) for piece in range(pieces)]
            kept.append(path)
    if not kept:
        raise UserError(f"no usable audio in {folder}: {describe_refused(refused)}")
    file, start, length = np.array(pieces_of_files, dtype=np.int64).T.copy()
    return Corpus(kept, file, start, length, refused=refused)


def describe_refused(reasons: list[str]) -> str:
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")


def check_header(path: str) -> AudioInfo | str:
    """The header, or the reason why the file is refused."""
    try:
        info = read_header(path)
    except BadAudioError as error:
        return str(error)
    if info.samples < RECEPTIVE_FIELD:
        return f"{show_path(path)}: {describe_too_short(info.samples)}"
    return info


def decode(corpus: Corpus) -> Corpus:
    """Decode every utterance into memory. An utterance that cannot be decoded is reported and keeps its index."""

    def attempt(utterance: int) -> tuple[np.ndarray, str] | BadAudioError:
        """The samples of an utterance, and why it cannot be used if it is silent."""
        try:
            return corpus.read(utterance), ""
        except SilentAudioError as error:
            return np.zeros(0, np.int16), str(error)
        except BadAudioError as error:
            return error

    remote = is_url(corpus.paths[0])
    with ThreadPoolExecutor(REQUESTS if remote else os.cpu_count()) as pool:
        results = collect(pool, attempt, range(len(corpus)), corpus.place)
        found = [
            (result, result) if isinstance(result, str) else result
            for result in track(results, "Decoding audio", len(corpus))
        ]
    # A silent piece is not listed if another piece of its recording has sound.
    sound = {corpus.place(utterance) for utterance, (_, reason) in enumerate(found) if not reason}
    reasons = [
        reason
        for utterance, (samples, reason) in enumerate(found)
        if reason and (isinstance(samples, str) or corpus.place(utterance) not in sound)
    ]
    refused = list(dict.fromkeys(reasons))  # pieces of a file share its reason
    if all(reason for _, reason in found):
        raise UserError(f"no usable audio: {describe_refused(refused)}")
    return replace(corpus, refused=corpus.refused + refused, audio=[samples for samples, _ in found])
