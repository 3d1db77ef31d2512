"""Read long recordings block by block, as mono at 16 kHz, without holding all of one in memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sjepa.audio.io import SAMPLE_RATE, check_samples, open_audio, refuse_cancelled, refuse_cut_wav

BLOCK_SECONDS = 10


def stream_audio(path: str | Path) -> Iterator[np.ndarray]:
    """Yield float32 samples at 16 kHz with the channels averaged, in blocks. `read_audio` returns the same samples."""
    with open_audio(path, "") as file:
        refuse_cut_wav(file, path)
        rate, resampler, mean, loudest = file.samplerate, None, 0.0, 0.0
        if rate != SAMPLE_RATE:
            import soxr

            resampler = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
        while True:
            block = file.read(BLOCK_SECONDS * rate, dtype="float32", always_2d=True)
            if block.shape[1] == 1:
                mono = block[:, 0]
            else:
                mono = block.mean(axis=1, dtype=np.float32)
                mean, loudest = max(mean, np.abs(mono).max(initial=0.0)), max(loudest, np.abs(block).max(initial=0.0))
            check_samples(mono)
            ended = len(block) < BLOCK_SECONDS * rate
            if resampler is not None:
                mono = resampler.resample_chunk(np.ascontiguousarray(mono), last=ended)
            if len(mono):
                yield np.ascontiguousarray(mono)
            if ended:
                refuse_cancelled(mean, loudest)
                return
