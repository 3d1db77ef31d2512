"""A uniform sample of a stream in bounded memory, the same whatever the order or the number of ranks.

Every frame gets a random key from its utterance and place; the frames with the smallest keys are the sample.
That is a uniform draw without replacement, as in Vitter's reservoir, and two reservoirs merge by keeping the
smallest keys of both.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sjepa import distributed


class Reservoir:
    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self.keys = np.empty(0)
        self.frames: Tensor | None = None

    def add(self, features: Tensor, utterances: np.ndarray) -> None:
        """Offer the frames (B, T, D) of numbered utterances."""
        batch, frames, _ = features.shape
        keys = np.stack([np.random.default_rng((self.seed, int(u))).random(frames) for u in utterances]).reshape(-1)
        self.merge(keys, features.reshape(batch * frames, -1))

    def merge(self, keys: np.ndarray, frames: Tensor) -> None:
        # Most of a long stream is turned away here, before its frames are copied.
        if len(self.keys) == self.size:
            better = np.flatnonzero(keys < self.keys[-1])
            keys, frames = keys[better], frames[torch.from_numpy(better).to(frames.device)]
        all_keys = np.concatenate([self.keys, keys])
        order = np.argsort(all_keys, kind="stable")[: self.size]
        pool = frames if self.frames is None else torch.cat([self.frames, frames])
        self.keys = all_keys[order]
        self.frames = pool[torch.from_numpy(order).to(pool.device)]

    def gather(self) -> Tensor:
        """The sample of all ranks' streams together, in the order of the keys: (at most size, D)."""
        assert self.frames is not None
        if distributed.world_size() > 1:
            # All ranks' reservoirs as tensors of one shape; what is not filled has an infinite key.
            missing = self.size - len(self.keys)
            keys = F.pad(torch.from_numpy(self.keys).to(self.frames.device), (0, missing), value=torch.inf)
            frames = F.pad(self.frames, (0, 0, 0, missing))
            others = zip(distributed.gather_tensors(keys), distributed.gather_tensors(frames), strict=True)
            for number, (other_keys, other_frames) in enumerate(others):
                if number != distributed.rank():
                    held = torch.isfinite(other_keys)
                    self.merge(other_keys[held].cpu().numpy(), other_frames[held])
        return self.frames
