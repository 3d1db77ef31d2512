"""Read audio files of any rate and channel count as mono at 16 kHz."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from sjepa.audio.wav import missing_bytes
from sjepa.errors import UserError
from sjepa.files import escape_text

SAMPLE_RATE = 16_000
EXTENSIONS = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3"})
# Extensions of audio that is not read: it has to be converted first.
OTHER_EXTENSIONS = frozenset(
    {".3gp", ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".au", ".caf", ".m4a", ".m4b", ".mka", ".mp2"}
    | {".mp4", ".oga", ".sph", ".spx", ".webm", ".wma", ".wv"}
)
RATES = (1_000, 1_000_000)  # accepted rates in Hz: at a far lower rate, a few bytes would become hours at 16 kHz
LOUDEST = 1e6  # full scale is 1; far larger samples overflow in the encoder
CANCELLED = 1e-3  # channels cancel each other if their mean is quieter than this share of the loudest sample
ROUNDING = 16  # samples at 16 kHz that a file may lack, because resampling rounds
OVERSHOOT = 1_600  # samples at 16 kHz that a list may claim beyond the end of a recording, because lists round
UNRECOGNISED = 1  # libsndfile's code of an error: a format that it does not know
SKIPPED = 0.1  # seconds that may not decode; decoders of MP3 drop a few frames at the ends of healthy files
HEADER_BYTES = 128  # bytes that a WAV header may state in excess, because some programs count the header itself
MARGIN = 1_600  # samples at 16 kHz read around a piece before resampling, so that its edges match the whole file


class BadAudioError(UserError):
    """An audio file cannot be used. The message gives the reason."""


class SilentAudioError(BadAudioError):
    """Digital silence: every sample is zero."""


class AudioInfo(NamedTuple):
    samples: int  # at 16 kHz
    rate: int
    channels: int


def show_path(path: str | Path) -> str:
    """Return a path as printable text: bytes that are not UTF-8 are escaped."""
    return escape_text(str(path))


def open_sound(source: str | Path | BinaryIO) -> Any:
    """Open a path, or bytes in memory, as a `soundfile.SoundFile`."""
    import soundfile

    # Pass the path as bytes, because a file name need not be UTF-8.
    return soundfile.SoundFile(os.fsencode(source) if isinstance(source, str | Path) else source)


def read_header(source: str | Path | BinaryIO, name: str = "") -> AudioInfo:
    """Read length, rate and channels from the header, and check that the last sample decodes.

    A header can state more samples than the file has.
    """
    with open_audio(source, name) as file:
        if file.frames <= 0:
            raise BadAudioError("the file holds no samples")
        refuse_cut_wav(file, source)
        file.seek(file.frames - 1)
        if not len(file.read(1, dtype="float32", always_2d=True)):
            raise BadAudioError(f"the file is cut short: its header states {file.frames} samples")
        return AudioInfo(resampled_length(file.frames, file.samplerate), file.samplerate, file.channels)


def refuse_cut_wav(opened: Any, source: str | Path | BinaryIO) -> None:
    """Raise BadAudioError if a WAV file, opened from a source, ends before the samples that its header states."""
    if not opened.format.startswith("WAV"):  # WAV or WAVEX; other files need not be opened again
        return
    if isinstance(source, str | Path):
        with open(source, "rb") as file:
            missing = missing_bytes(file)
    else:
        position = source.tell()  # libsndfile reads the same bytes
        missing = missing_bytes(source)
        source.seek(position)
    if missing > HEADER_BYTES:
        raise BadAudioError(f"the file is cut short: its header states {missing:,} more bytes of samples")


def read_audio(source: str | Path | BinaryIO, start: int = 0, samples: int | None = None, name: str = "") -> np.ndarray:
    """Read float32 samples at 16 kHz with the channels averaged. `start` and `samples` count at 16 kHz.

    There are fewer samples if a stretch from a list ends a little after the recording; see `clip_stretch`.
    """
    with open_audio(source, name) as file:
        if samples is not None:
            samples = clip_stretch(start, samples, resampled_length(file.frames, file.samplerate), "an utterance")
        return read_piece(file, start, samples)


def clip_stretch(start: int, samples: int, recording: int, name: str) -> int:
    """Return how many samples of a stretch from a list a recording of that many samples has.

    Raise BadAudioError if the stretch starts after the end of the recording, or ends more than OVERSHOOT after it.
    """
    if start >= recording or start + samples > recording + OVERSHOOT:
        end, there = (start + samples) / SAMPLE_RATE, recording / SAMPLE_RATE
        raise BadAudioError(f"{name} ends at {end:.2f} s, but the recording ends at {there:.2f} s")
    return min(samples, recording - start)


def read_int16(source: str | Path | BinaryIO, start: int = 0, samples: int | None = None, name: str = "") -> np.ndarray:
    """Like `read_audio`, but int16. Audio that is already 16-bit mono at 16 kHz is not converted."""
    with open_audio(source, name) as file:
        if (file.samplerate, file.channels, file.subtype) != (SAMPLE_RATE, 1, "PCM_16"):
            return to_int16(read_piece(file, start, samples))
        if start:
            file.seek(min(start, file.frames))
        return require_length(decode(file, -1 if samples is None else samples, dtype="int16"), samples)


@contextmanager
def open_audio(source: str | Path | BinaryIO, name: str) -> Iterator[Any]:
    """Open an audio file. Any error while it is read becomes a `BadAudioError` that names the file."""
    name = name or show_path(source)  # type: ignore[arg-type]
    try:
        if isinstance(source, str | Path) and os.path.exists(source) and not os.path.isfile(source):
            raise BadAudioError("not a regular file")  # reading a pipe would never end
        with open_sound(source) as file:
            if not RATES[0] <= file.samplerate <= RATES[1]:
                raise BadAudioError(f"the sampling rate is {file.samplerate:,} Hz, not {RATES[0]:,} to {RATES[1]:,}")
            yield file
    except BadAudioError as error:
        raise BadAudioError(f"{name}: {error}") from None
    except MemoryError:
        raise BadAudioError(f"{name}: cannot be decoded (not enough memory)") from None
    except Exception as error:  # on damaged bytes libsndfile's binding raises ValueError, TypeError and others
        if isinstance(source, str | Path) and not os.path.exists(source):
            raise BadAudioError(f"{name}: there is no such file; was it moved?") from None
        reason = getattr(error, "error_string", "") or one_line(error)  # libsndfile's message, without the path
        if "psf_fseek" in reason:
            reason = "it may be cut short"
        unknown = getattr(error, "code", None) == UNRECOGNISED
        hint = "; if it is audio, convert it to wav or flac first, for example with ffmpeg" if unknown else ""
        raise BadAudioError(f"{name}: cannot be decoded ({reason.rstrip('.')}){hint}") from error


def read_piece(file: Any, start: int, samples: int | None) -> np.ndarray:
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
    audio = decode(file, wanted, dtype="float32", always_2d=True)
    mono = audio[:, 0] if audio.shape[1] == 1 else mix_channels(audio)
    if rate != SAMPLE_RATE:
        import soxr

        mono = soxr.resample(mono, rate, SAMPLE_RATE)[margin_before:]
        mono = mono if samples is None else mono[:samples]
    check_samples(mono)
    return require_length(mono, samples)


def decode(file: Any, wanted: int, **form: Any) -> np.ndarray:
    """Read samples from the current position, to the end of the file if `wanted` is -1.

    Raise BadAudioError if there are too few up to the end. Decoders of Ogg skip damaged pages without an error, and
    what follows would then be too early.
    """
    first = file.tell()
    audio: np.ndarray = file.read(wanted, **form)
    decoded = first + len(audio)
    if wanted == -1 and decoded < file.frames - SKIPPED * file.samplerate:
        raise BadAudioError(f"the file is damaged: only {decoded:,} of its {file.frames:,} samples can be decoded")
    return audio


def mix_channels(audio: np.ndarray) -> np.ndarray:
    """Return the mean of the channels."""
    mono: np.ndarray = audio.mean(axis=1, dtype=np.float32)
    refuse_cancelled(np.abs(mono).max(initial=0.0), np.abs(audio).max(initial=0.0))
    return mono


def refuse_cancelled(mean: float, loudest: float) -> None:
    """Raise BadAudioError if the mean of the channels is nearly silent. Both are largest absolute values."""
    if mean < CANCELLED * loudest:
        raise BadAudioError("its channels cancel each other when they are averaged: convert one of them to mono")


def check_samples(samples: np.ndarray) -> None:
    """Refuse samples that are not finite, or so large that their features would not be finite."""
    largest = np.abs(samples).max(initial=0.0)
    if not np.isfinite(largest):
        raise BadAudioError("some samples are not finite (NaN or infinite)")
    if largest > LOUDEST:
        raise BadAudioError(f"some samples reach {largest:.0e}, far beyond full scale (1)")


def require_length(mono: np.ndarray, samples: int | None) -> np.ndarray:
    """Return the samples if there are as many as requested, or fewer only because a duration was rounded."""
    if not len(mono) or (samples is not None and len(mono) < samples - ROUNDING):
        # No numbers in the message, so that a file has the same reason for every crop.
        raise BadAudioError("the file is cut short: it holds fewer samples than its header, index or list says")
    return mono


def to_int16(samples: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(samples * 32768.0), -32768, 32767).astype(np.int16)


def resampled_length(frames: int, rate: int) -> int:
    return frames if rate == SAMPLE_RATE else frames * SAMPLE_RATE // rate


def one_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
