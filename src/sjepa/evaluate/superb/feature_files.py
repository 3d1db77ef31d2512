"""Features on disk, for those that do not fit in memory: one file per utterance, memory-mapped when it is read."""

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sjepa import distributed
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.upstream import Upstream
from sjepa.files import atomic_file, refuse_file

SUFFIX = ".npy"


class FeatureFiles:
    """A folder of features that never holds more than `most` bytes.

    The folder may serve several encoders and evaluations, one after another. Any file in it, or all of it, can be
    deleted at any time between two runs: what is missing is computed again. A file is found by the encoder's weights,
    the precision, and the path, size and time of the audio file, so that features of changed audio are not read.
    """

    def __init__(self, folder: Path, most: int, upstream: Upstream):
        refuse_file(folder)
        self.folder = folder / f"{upstream.name.replace(' ', '-')}-{upstream.fingerprint()}-{upstream.precision}"
        self.folder.mkdir(parents=True, exist_ok=True)
        held = sum(file.stat().st_size for file in folder.rglob(f"*{SUFFIX}"))
        self.room = (most - held) // distributed.world_size()
        self.dtype = torch.bfloat16 if upstream.precision == "bf16" and upstream.network else torch.float32

    def file(self, utterance: Utterance) -> Path:
        about = utterance.path.stat()
        name = hashlib.sha256(f"{utterance.key} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:34]}{SUFFIX}"

    def load(self, file: Path) -> Tensor:
        """Features of a file: pages are read when they are used, and never written back."""
        return torch.from_numpy(np.load(file, mmap_mode="c")).view(self.dtype)

    def save(self, utterance: Utterance, states: Tensor) -> None:
        """Keep features while there is room for them."""
        size = states.numel() * states.element_size()
        file = self.file(utterance)
        if size > self.room or file.is_file():
            return
        self.room -= size
        file.parent.mkdir(exist_ok=True)
        plain = states.contiguous().view(torch.int16) if states.dtype is torch.bfloat16 else states
        # The file is gone if another rank has just written the same one.
        with suppress(FileNotFoundError), atomic_file(file) as unfinished, unfinished.open("wb") as target:
            np.save(target, plain.cpu().numpy())
