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
        """The sample of all ranks' streams together, in the order of the keys: (at most size, D).

        Ranks first agree on the largest key that stays, and only then exchange frames. So a rank receives about one
        sample, however many ranks there are.
        """
        self.settle()
        if distributed.world_size() > 1:
            self.bound = self.shared_bound()
            (keys,), (frames,) = self.keys, self.parts
            few = int(np.searchsorted(keys, self.bound, side="right"))
            self.keys, self.parts = exchange(keys[:few], frames[:few])
            self.settle()
        (sample,) = self.parts
        return sample

    def shared_bound(self) -> float:
        """The largest key of the sample of all ranks, found by bisection over counts."""
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
    """Every rank's keys and frames, in the order of the ranks, which may hold different numbers of them."""
    counts = torch.cat(distributed.gather_tensors(torch.tensor([len(keys)], device=frames.device))).tolist()
    missing = max(counts) - len(keys)
    padded = distributed.gather_tensors(F.pad(frames, (0, 0, 0, missing)))
    all_keys = distributed.gather_tensors(F.pad(torch.from_numpy(keys).to(frames.device), (0, missing)))
    parts = [part[:count] for part, count in zip(padded, counts, strict=True)]
    return [key[:count].cpu().numpy() for key, count in zip(all_keys, counts, strict=True)], parts
