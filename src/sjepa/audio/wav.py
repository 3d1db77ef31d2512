"""Find WAV files that were cut. libsndfile reads such a file as if its recording ended there."""

import os
import struct
from typing import BinaryIO

UNKNOWN = 0x7FFF_F000  # programs that write to a pipe state this size or a larger one, because they do not know it
CHUNKS = 64  # that are searched for the samples; a real file has a few before them


def missing_bytes(file: BinaryIO) -> int:
    """Return how many bytes of samples a WAV header states beyond the end of the file. 0 for other formats."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        return 0
    for _ in range(CHUNKS):
        header = file.read(8)
        if len(header) < 8:
            return 0
        name, size = struct.unpack("<4sI", header)
        if name == b"data":
            return 0 if size >= UNKNOWN else max(0, file.tell() + size - end)
        file.seek(size + size % 2, os.SEEK_CUR)  # chunks start at even places
    return 0
