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

SLACK = 1.5  # times the sample is held before it is sorted out: sorting at every batch takes longer than encoding it


class Reservoir:
    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self.keys: list[np.ndarray] = []
        self.parts: list[Tensor] = []
        self.bound = np.inf  # a frame with a larger key is in no sample any more

    def add(self, features: Tensor, utterances: np.ndarray) -> None:
        """Offer the frames (B, T, D) of numbered utterances."""
        batch, frames, _ = features.shape
        keys = np.stack([np.random.default_rng((self.seed, int(u))).random(frames) for u in utterances]).reshape(-1)
        self.merge(keys, features.reshape(batch * frames, -1))

    def merge(self, keys: np.ndarray, frames: Tensor) -> None:
        # Most of a long stream is turned away here, before its frames are copied.
        if self.bound < np.inf:
            better = np.flatnonzero(keys < self.bound)
            keys, frames = keys[better], frames[torch.from_numpy(better).to(frames.device)]
        self.keys.append(keys)
        self.parts.append(frames)
        if sum(map(len, self.keys)) >= SLACK * self.size:
            self.settle()

    def settle(self) -> None:
        """Keep the frames with the smallest keys, in the order of the keys."""
        keys, frames = np.concatenate(self.keys), torch.cat(self.parts)
        order = np.argsort(keys, kind="stable")[: self.size]
        self.keys, self.parts = [keys[order]], [frames[torch.from_numpy(order).to(frames.device)]]
        if len(order) == self.size:
            self.bound = keys[order[-1]]

    def gather(self) -> Tensor:
        """The sample of all ranks' streams together, in the order of the keys: (at most size, D)."""
        self.settle()
        if distributed.world_size() > 1:
            (own_keys,), (own_frames,) = self.keys, self.parts
            # All ranks' reservoirs as tensors of one shape; what is not filled has an infinite key.
            missing = self.size - len(own_keys)
            keys = F.pad(torch.from_numpy(own_keys).to(own_frames.device), (0, missing), value=torch.inf)
            frames = F.pad(own_frames, (0, 0, 0, missing))
            others = zip(distributed.gather_tensors(keys), distributed.gather_tensors(frames), strict=True)
            for number, (other_keys, other_frames) in enumerate(others):
                if number != distributed.rank():
                    held = torch.isfinite(other_keys)
                    self.merge(other_keys[held].cpu().numpy(), other_frames[held])
            self.settle()
        (sample,) = self.parts
        return sample
