"""Encode audio as FLAC."""

import io

import numpy as np

from sjepa.audio.io import SAMPLE_RATE


def encode_flac(samples: np.ndarray) -> bytes:
    """Return int16 samples at 16 kHz as the bytes of a FLAC file, which is lossless."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()
