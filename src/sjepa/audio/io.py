"""Reading audio files: any rate and channel count in, mono at 16 kHz out."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sjepa.errors import UserError

SAMPLE_RATE = 16_000
EXTENSIONS = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3"})
MARGIN = 1_600  # samples at 16 kHz read around a piece that must be resampled, so that its edges are as in the whole


class BadAudioError(UserError):
    """A file that cannot be used, and why."""


class AudioInfo(NamedTuple):
    samples: int  # at 16 kHz
    rate: int
    channels: int


def probe(path: str | Path) -> AudioInfo:
    """Length, rate and channels from the header alone."""
    import soundfile

    try:
        info = soundfile.info(str(path))
    except (soundfile.SoundFileError, OSError) as error:
        raise BadAudioError(f"{path}: not readable as audio ({one_line(error)})") from error
    if info.frames <= 0 or info.samplerate <= 0:
        raise BadAudioError(f"{path}: holds no samples")
    return AudioInfo(resampled_length(info.frames, info.samplerate), info.samplerate, info.channels)


def read_audio(path: str | Path, start: int = 0, samples: int | None = None) -> np.ndarray:
    """Float32 samples at 16 kHz, channels averaged; `start` and `samples` count at 16 kHz."""
    import soundfile

    try:
        with soundfile.SoundFile(str(path)) as file:
            return read_piece(file, start, samples)
    except (soundfile.SoundFileError, OSError) as error:
        raise BadAudioError(f"{path}: cannot be decoded ({one_line(error)})") from error
    except BadAudioError as error:
        raise BadAudioError(f"{path}: {error}") from None


def read_piece(file, start: int, samples: int | None) -> np.ndarray:  # type: ignore[no-untyped-def]
    rate = file.samplerate
    if rate == SAMPLE_RATE:
        margin_before, first = 0, start
        wanted = -1 if samples is None else samples
    else:
        margin_before = min(start, MARGIN)
        first = (start - margin_before) * rate // SAMPLE_RATE
        wanted = -1 if samples is None else -(-(margin_before + samples + MARGIN) * rate // SAMPLE_RATE)
    if first:
        file.seek(min(first, file.frames))
    audio = file.read(wanted, dtype="float32", always_2d=True)
    mono = audio[:, 0] if audio.shape[1] == 1 else audio.mean(axis=1, dtype=np.float32)
    if rate != SAMPLE_RATE:
        import soxr

        mono = soxr.resample(mono, rate, SAMPLE_RATE)[margin_before:]
        mono = mono if samples is None else mono[:samples]
    if not len(mono) or (samples is not None and len(mono) < samples - 1):
        raise BadAudioError(f"cut short: {len(mono)} of {samples} samples from {start}")
    if not np.isfinite(mono).all():
        raise BadAudioError("holds samples that are not numbers (NaN or infinite)")
    return mono


def to_int16(samples: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(samples * 32768.0), -32768, 32767).astype(np.int16)


def resampled_length(frames: int, rate: int) -> int:
    return frames if rate == SAMPLE_RATE else frames * SAMPLE_RATE // rate


def one_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
