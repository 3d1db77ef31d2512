"""Features on disk, if they do not fit in memory: one memory-mapped file per utterance."""

import hashlib
import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sjepa import distributed
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.upstream import Upstream
from sjepa.files import atomic_file, refuse_file
from sjepa.progress import say

SUFFIX = ".npy"


class FeatureFiles:
    """A folder of features of at most `most` bytes.

    Several encoders and evaluations may use the folder, one after another. Files can be deleted at any time and are
    then computed again. A file depends on the encoder's weights and settings, the precision, and the path, size and
    modification time of the audio file. Features of changed audio are therefore never used.
    """

    def __init__(self, folder: Path, most: int, upstream: Upstream):
        refuse_file(folder)
        if upstream.is_code:
            raise UserError(
                f"--feature-cache: a change of the code of {upstream.name} would not be noticed; leave out "
                "--feature-cache"
            )
        name = upstream.name.replace(" ", "-")
        self.folder = folder / f"{name}-{upstream.fingerprint}-{upstream.settings_hash}-{upstream.precision}"
        self.folder.mkdir(parents=True, exist_ok=True)
        used = sum(file.stat().st_size for file in folder.rglob(f"*{SUFFIX}"))
        self.room = (most - used) // distributed.world_size()
        self.dtype = torch.bfloat16 if upstream.precision == "bf16" and upstream.network else torch.float32

    def file(self, utterance: Utterance) -> Path:
        about = utterance.path.stat()
        name = hashlib.sha256(f"{utterance.key} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:34]}{SUFFIX}"

    def load(self, file: Path) -> Tensor:
        """Map the features of a file. Pages are read on access and never written back."""
        return torch.from_numpy(np.load(file, mmap_mode="c")).view(self.dtype)

    def save(self, file: Path, states: Tensor) -> None:
        """Save features if there is room. If the disk is full, report it once and save no more."""
        size = states.numel() * states.element_size()
        if size > self.room or file.is_file():
            return
        self.room -= size
        plain = states.contiguous().view(torch.int16) if states.dtype is torch.bfloat16 else states
        content = io.BytesIO()
        np.save(content, plain.cpu().numpy())  # not to the file: on a full disk, numpy may cut it off without an error
        try:
            file.parent.mkdir(parents=True, exist_ok=True)  # the folder may have been deleted
            with atomic_file(file) as unfinished:
                unfinished.write_bytes(content.getbuffer())
        except FileNotFoundError:  # another process has just deleted the folder
            pass
        except OSError as error:
            self.room = 0
            say(f"{self.folder}: {error.strerror}; no more features are saved there, others are computed when needed")
