"""Encode audio as the bytes of a file."""

import io
from typing import Literal

import numpy as np

from sjepa.audio.io import SAMPLE_RATE

AudioFormat = Literal["FLAC", "WAV"]


def encode_audio(samples: np.ndarray, audio_format: AudioFormat) -> bytes:
    """Return int16 samples at 16 kHz as the bytes of a file, without loss. A WAV has a plain header of 44 bytes."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SAMPLE_RATE, format=audio_format, subtype="PCM_16")
    return buffer.getvalue()
