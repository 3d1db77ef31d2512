"""The frames of the encoder: which samples they cover. MFCCs have the same frames."""

import numpy as np

from sjepa.audio.io import SAMPLE_RATE

STRIDE = 320  # samples between frames: 20 ms at 16 kHz
FRAMES_PER_SECOND = 50
RECEPTIVE_FIELD = 400  # samples per frame: frame t covers [320 t, 320 t + 400)


def frame_count(samples: int) -> int:
    """Return the number of frames for a number of samples: 0 if shorter than one receptive field."""
    return max(0, (samples - RECEPTIVE_FIELD) // STRIDE + 1)


def describe_too_short(samples: int) -> str:
    """Say that audio is shorter than a frame."""
    return f"{samples} samples are too few: a frame needs {RECEPTIVE_FIELD} (25 ms at 16 kHz)"


def sample_count(frames: int) -> int:
    """Return the number of samples that a number of frames (at least one) covers."""
    return (frames - 1) * STRIDE + RECEPTIVE_FIELD


def frame_slice(first: int, last: int) -> slice:
    """Return the samples that the frames from `first` up to, but not including, `last` cover."""
    return slice(first * STRIDE, first * STRIDE + sample_count(last - first))


def frame_centres(frames: int, first: int = 0) -> np.ndarray:
    """Return the centre of each frame's receptive field, in seconds."""
    return (STRIDE * np.arange(first, first + frames) + RECEPTIVE_FIELD // 2) / SAMPLE_RATE
