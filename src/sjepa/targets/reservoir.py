"""A uniform sample of a stream in bounded memory, independent of the order and the number of ranks.

Every frame gets a random key from its utterance and position. The frames with the smallest keys are the sample. This is
a uniform draw without replacement, as in Vitter's reservoir. Two reservoirs merge by keeping the smallest keys of both.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sjepa import distributed

SLACK = 1.5  # sort when this many times the sample is held; sorting at every batch takes longer than encoding it


class Reservoir:
    """A uniform sample of at most `size` frames."""

    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self.keys: list[np.ndarray] = []
        self.parts: list[Tensor] = []
        self.bound = np.inf  # a frame with a larger key cannot be in the sample

    def add(self, features: Tensor, utterances: np.ndarray) -> None:
        """Offer the frames (B, T, D) of numbered utterances."""
        batch, frames, _ = features.shape
        keys = np.stack([np.random.default_rng((self.seed, int(u))).random(frames) for u in utterances]).reshape(-1)
        self.merge(keys, features.reshape(batch * frames, -1))

    def merge(self, keys: np.ndarray, frames: Tensor) -> None:
        """Add frames with their keys."""
        # Most frames of a long stream are dropped here, before they are copied.
        if self.bound < np.inf:
            better = np.flatnonzero(keys < self.bound)
            keys, frames = keys[better], frames[torch.from_numpy(better).to(frames.device)]
        self.keys.append(keys)
        self.parts.append(frames)
        if sum(map(len, self.keys)) >= SLACK * self.size:
            self.keep_smallest()

    def keep_smallest(self) -> None:
        """Keep the frames with the smallest keys, in the order of the keys."""
        keys, frames = np.concatenate(self.keys), torch.cat(self.parts)
        order = np.argsort(keys, kind="stable")[: self.size]
        self.keys, self.parts = [keys[order]], [frames[torch.from_numpy(order).to(frames.device)]]
        if len(order) == self.size:
            self.bound = keys[order[-1]]

    def gather(self) -> Tensor:
        """Return the sample over all ranks, in the order of the keys: (at most size, D).

        Ranks first agree on the largest key of the sample, and then exchange only these frames. A rank therefore
        receives about one sample, for any number of ranks.
        """
        self.keep_smallest()
        if distributed.world_size() > 1:
            self.bound = self.shared_bound()
            (keys,), (frames,) = self.keys, self.parts
            few = int(np.searchsorted(keys, self.bound, side="right"))
            self.keys, self.parts = exchange(keys[:few], frames[:few])
            self.keep_smallest()
        (sample,) = self.parts
        return sample

    def shared_bound(self) -> float:
        """Find the largest key of the sample over all ranks, by bisection over counts."""
        (keys,) = self.keys
        low, high = 0.0, 1.0  # keys are uniform between them
        while (middle := (low + high) / 2) not in (low, high):
            below = torch.tensor(np.searchsorted(keys, middle, side="right"), device=self.parts[0].device)
            if int(distributed.sum_over_ranks(below)) > self.size:
                high = middle
            else:
                low = middle
        return low


def exchange(keys: np.ndarray, frames: Tensor) -> tuple[list[np.ndarray], list[Tensor]]:
    """Return the keys and frames of all ranks, in the order of the ranks. Their numbers may differ."""
    counts = torch.cat(distributed.gather_tensors(torch.tensor([len(keys)], device=frames.device))).tolist()
    missing = max(counts) - len(keys)
    padded = distributed.gather_tensors(F.pad(frames, (0, 0, 0, missing)))
    all_keys = distributed.gather_tensors(F.pad(torch.from_numpy(keys).to(frames.device), (0, missing)))
    parts = [part[:count] for part, count in zip(padded, counts, strict=True)]
    return [key[:count].cpu().numpy() for key, count in zip(all_keys, counts, strict=True)], parts
