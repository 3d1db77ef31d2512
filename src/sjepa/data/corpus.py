"""A corpus: utterances in audio files, found by scanning folders."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sjepa.audio.io import EXTENSIONS, SAMPLE_RATE, AudioInfo, BadAudioError, probe, read_audio, to_int16
from sjepa.errors import UserError
from sjepa.model.frontend import RECEPTIVE_FIELD
from sjepa.progress import say, track


@dataclass(frozen=True)
class Corpus:
    """Utterances as columns; an utterance is a stretch of a file. Samples count at 16 kHz."""

    paths: list[str]
    file: np.ndarray  # utterance -> index into paths
    start: np.ndarray  # first sample of the utterance in its file
    length: np.ndarray  # samples
    refused: list[str] = field(default_factory=list)
    """Why each unusable file was left out."""
    audio: list[np.ndarray] | None = None
    """Decoded int16 samples of each utterance, where the corpus is held in memory."""

    def __len__(self) -> int:
        return len(self.length)

    @property
    def hours(self) -> float:
        return float(self.length.sum()) / SAMPLE_RATE / 3600

    def fingerprint(self) -> str:
        """Changes when a file is added, removed, renamed or of another length; the folder may move."""
        root = os.path.commonpath(self.paths) if self.paths else ""
        names = "\n".join(os.path.relpath(path, root) for path in self.paths)
        digest = hashlib.sha256(names.encode(errors="surrogateescape"))
        for column in (self.file, self.start, self.length):
            digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
        return digest.hexdigest()[:16]

    def name(self, utterance: int) -> str:
        return self.paths[self.file[utterance]]

    def read(self, utterance: int, start: int = 0, samples: int | None = None) -> np.ndarray:
        """Int16 samples of an utterance, or of a stretch of it; refuses digital silence."""
        length = int(self.length[utterance])
        samples = length - start if samples is None else samples
        if self.audio is not None:
            return self.audio[utterance][start : start + samples]
        decoded = to_int16(read_audio(self.name(utterance), int(self.start[utterance]) + start, samples))
        if not decoded.any():
            raise BadAudioError(f"{self.name(utterance)}: silence, every sample is zero")
        return decoded[:samples] if len(decoded) >= samples else np.pad(decoded, (0, samples - len(decoded)))

    def select(self, kept: np.ndarray, **changes: object) -> "Corpus":
        return replace(self, file=self.file[kept], start=self.start[kept], length=self.length[kept], **changes)  # type: ignore[arg-type]


def audio_files(folder: Path) -> Iterator[str]:
    """Audio files under a folder, links followed once, in a stable order."""
    visited = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(where)
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders.sort()
        yield from (os.path.join(where, name) for name in sorted(files) if Path(name).suffix.lower() in EXTENSIONS)


def scan_folder(folder: str | Path, max_seconds: float, show: bool = True) -> Corpus:
    """Index the audio under a folder by its headers; long files become equal pieces of at most `max_seconds`."""
    folder = Path(folder)
    if not folder.exists():
        raise UserError(f"there is no folder {folder}")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; a folder of audio is needed")
    paths = list(audio_files(folder))
    if not paths:
        raise UserError(f"no audio in {folder}: looked for {', '.join(sorted(EXTENSIONS))}")
    limit = round(max_seconds * SAMPLE_RATE)
    kept: list[str] = []
    refused: list[str] = []
    pieces_of_files: list[tuple[int, int, int]] = []  # file, start, length
    with ThreadPoolExecutor(min(16, 4 * (os.cpu_count() or 1))) as pool:
        for path, info in zip(paths, track(pool.map(header, paths), "Reading headers", len(paths), show), strict=True):
            if isinstance(info, str):
                refused.append(info)
                continue
            pieces = -(-info.samples // limit)
            size = info.samples // pieces
            pieces_of_files += [(len(kept), size * piece, size) for piece in range(pieces)]
            kept.append(path)
    if not kept:
        raise UserError(f"no usable audio in {folder}: {first_of(refused)}")
    file, start, length = np.array(pieces_of_files, dtype=np.int64).T.copy()
    return Corpus(kept, file, start, length, refused)


def first_of(reasons: list[str]) -> str:
    return reasons[0] + (f" (and {len(reasons) - 1} more like it)" if len(reasons) > 1 else "")


def header(path: str) -> AudioInfo | str:
    """The header, or why the file is refused."""
    try:
        info = probe(path)
    except BadAudioError as error:
        return str(error)
    if info.samples < RECEPTIVE_FIELD:
        return f"{path}: {info.samples} samples at 16 kHz, shorter than one frame ({RECEPTIVE_FIELD})"
    return info


def decode(corpus: Corpus, show: bool = True) -> Corpus:
    """The corpus with every utterance decoded in memory; those that cannot be decoded are left out and named."""

    def attempt(utterance: int) -> np.ndarray | str:
        try:
            return corpus.read(utterance)
        except BadAudioError as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(track(pool.map(attempt, range(len(corpus))), "Decoding audio", len(corpus), show))
    kept = np.array([index for index, result in enumerate(results) if not isinstance(result, str)], dtype=np.int64)
    refused = [result for result in results if isinstance(result, str)]
    if not len(kept):
        raise UserError(f"no usable audio: {first_of(refused)}")
    audio = [result for result in results if not isinstance(result, str)]
    return corpus.select(kept, refused=corpus.refused + refused, audio=audio)


def open_corpus(folder: str | Path, max_seconds: float, cache: str, memory_gb: float, show: bool = True) -> Corpus:
    """The corpus of a folder, decoded in memory where it fits; says what was left out."""
    corpus = scan_folder(folder, max_seconds, show)
    size = float(corpus.length.sum()) * 2 / 2**30
    if cache == "memory" or (cache == "auto" and size <= memory_gb):
        corpus = decode(corpus, show)
    left_out = f"; {len(corpus.refused)} left out:" if corpus.refused else ""
    say(f"{len(corpus):,} utterances, {corpus.hours:.2f} hours{left_out}")
    for line in corpus.refused[:5]:
        say(f"  {line}")
    if len(corpus.refused) > 5:
        say(f"  and {len(corpus.refused) - 5} more")
    return corpus


def end_to_end(corpus: Corpus) -> np.ndarray:
    """All samples of a decoded corpus in one row, to cut noise from."""
    assert corpus.audio is not None
    return np.concatenate(corpus.audio)
