"""The plan of batches: which utterances stand together, cropped to which length, in which order.

An epoch's plan is a pure function of (lengths, seed, epoch, ranks), made in one pass of array operations, so a
run continues at any batch in the time it takes to start.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError


@dataclass(frozen=True)
class BatchSpec:
    """One batch of all ranks together."""

    epoch: int
    index: int
    utterances: np.ndarray
    samples: int
    """Every utterance is cropped to this many samples."""


@dataclass(frozen=True)
class EpochPlan:
    epoch: int
    utterances: np.ndarray  # those of batch after batch
    offsets: np.ndarray  # (batches + 1,) where each batch starts
    samples: np.ndarray  # (batches,) crop length
    order: np.ndarray  # (batches,) which batch comes when

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> BatchSpec:
        batch = self.order[index]
        chosen = self.utterances[self.offsets[batch] : self.offsets[batch + 1]]
        return BatchSpec(self.epoch, index, chosen, int(self.samples[batch]))


class BatchPlan:
    """Batches of equal audio within length buckets; a bucket's batches all have one shape."""

    def __init__(self, lengths: np.ndarray, *, seconds: float, buckets: tuple[float, ...], seed: int, ranks: int = 1):
        self.seed, self.ranks = seed, ranks
        self.edges = np.array(sorted(round(length * SAMPLE_RATE) for length in buckets))
        self.bucket = np.searchsorted(self.edges, lengths, side="right") - 1  # -1: shorter than the shortest bucket
        self.too_short = int((self.bucket < 0).sum())
        if self.too_short == len(lengths):
            raise UserError(
                f"every utterance is shorter than the shortest bucket ({min(buckets)} s): "
                "lower batches.buckets, or join short files"
            )
        if len(lengths) - self.too_short < ranks:
            raise UserError(f"{len(lengths) - self.too_short} utterances are too few for {ranks} ranks")
        sizes = (seconds * SAMPLE_RATE / self.edges).astype(int)
        self.sizes = np.maximum(sizes // ranks * ranks, ranks)

    def epoch(self, epoch: int) -> EpochPlan:
        generator = np.random.default_rng((self.seed, epoch))
        chosen, sizes, samples = [], [], []
        left = np.empty(0, dtype=np.int64)
        for bucket in range(len(self.edges) - 1, -1, -1):
            # What does not fill a batch is cropped further, with the next shorter bucket.
            members = np.concatenate([left, generator.permutation(np.flatnonzero(self.bucket == bucket))])
            size = int(self.sizes[bucket])
            count = len(members) // size
            chosen.append(members[: count * size])
            sizes += [size] * count
            samples += [int(self.edges[bucket])] * count
            left = members[count * size :]
            # A corpus smaller than one batch still trains: on one batch of all it has.
            if bucket == 0 and not sizes:
                size = len(left) // self.ranks * self.ranks
                chosen.append(left[:size])
                sizes, samples = [size], [int(self.edges[0])]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return EpochPlan(epoch, np.concatenate(chosen), offsets, np.array(samples), generator.permutation(len(sizes)))

    def batches(self, epoch: int, index: int) -> Iterator[BatchSpec]:
        """Batch after batch without end, from a position on."""
        while True:
            plan = self.epoch(epoch)
            for at in range(index, len(plan)):
                yield plan[at]
            epoch, index = epoch + 1, 0
