"""The plan of batches: which utterances share a batch, their crop length, and the order of batches.

The plan of an epoch is a pure function of (lengths, shares, seed, epoch), for any world size. It takes one pass of
array operations, so continuing at any batch takes no longer than starting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sjepa.audio.frames import frame_count
from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError


@dataclass(frozen=True)
class BatchSpec:
    """One global batch. Each rank reads consecutive utterances of it."""

    epoch: int
    index: int
    utterances: np.ndarray
    samples: int
    """Every utterance is cropped to this many samples."""

    def places(self, rank: int, world_size: int) -> range:
        """The places in the batch that a rank reads."""
        return split_evenly(len(self.utterances), world_size)[rank]


def split_evenly(count: int, parts: int) -> list[range]:
    """Divide the numbers below `count` into `parts` ranges whose lengths differ by at most one."""
    edges = [count * part // parts for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True)
class EpochPlan:
    epoch: int
    utterances: np.ndarray  # of all batches, concatenated
    offsets: np.ndarray  # (batches + 1,) where each batch starts
    samples: np.ndarray  # (batches,) crop length
    order: np.ndarray  # (batches,) the order of the batches

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> BatchSpec:
        batch = self.order[index]
        chosen = self.utterances[self.offsets[batch] : self.offsets[batch + 1]]
        return BatchSpec(self.epoch, index, chosen, int(self.samples[batch]))

    def lengths(self) -> np.ndarray:
        """Samples of each batch, in the order of the epoch."""
        return (np.diff(self.offsets) * self.samples)[self.order]

    def total_samples(self) -> int:
        """Samples of the utterances of the epoch after cropping."""
        return int(self.lengths().sum())

    def count_batches(self, seconds: float) -> int:
        """The number of batches, from the first on, that hold this much audio; all if the epoch has less."""
        return min(len(self), 1 + int(np.searchsorted(np.cumsum(self.lengths()), seconds * SAMPLE_RATE)))

    def count_frames(self, hours: float) -> int:
        """The number of frames of the batches that hold this much audio."""
        batches = self.order[: self.count_batches(hours * 3600)]
        samples, kind = np.unique(self.samples, return_inverse=True)
        frames = np.array([frame_count(int(length)) for length in samples])[kind]
        return int((np.diff(self.offsets) * frames)[batches].sum())


class BatchPlan:
    """Plans batches of equal audio within length buckets. All batches of a bucket have the same shape.

    `shares` gives, for each corpus of a mix, its number of utterances and the share of them that an epoch uses.
    With `block` above 1, that many neighbours stay together, because they are next to each other in a shard.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        seconds: float,
        buckets: tuple[float, ...],
        seed: int,
        shares: Sequence[tuple[int, float]] = (),
        block: int = 1,
    ):
        self.seconds, self.seed, self.block = seconds, seed, block
        self.shares = shares or ((len(lengths), 1.0),)
        self.edges = np.array(sorted(round(length * SAMPLE_RATE) for length in buckets), dtype=lengths.dtype)
        # -1: shorter than the shortest bucket. Two bytes each, because there may be 25 million.
        self.bucket = (np.searchsorted(self.edges, lengths, side="right") - 1).astype(np.int16)
        self.too_short = int((self.bucket < 0).sum())
        if self.too_short == len(lengths):
            raise UserError(
                f"every utterance is shorter than the shortest bucket ({min(buckets)} s): "
                "lower batches.buckets, or join short files"
            )
        self.sizes = np.maximum((seconds * SAMPLE_RATE / self.edges).astype(int), 1)
        self.last: EpochPlan | None = None

    def epoch(self, epoch: int) -> EpochPlan:
        """The plan of an epoch. The last one is kept, because the start of a run needs the same epoch several times."""
        plan = self.last
        if plan is None or plan.epoch != epoch:
            plan = self.last = self.plan_epoch(epoch)
        return plan

    def plan_epoch(self, epoch: int) -> EpochPlan:
        generator = np.random.default_rng((self.seed, epoch))
        buckets = self.choose_buckets(epoch)
        chosen, sizes, samples = [], [], []
        left = np.empty(0, dtype=np.uint32)
        for bucket in range(len(self.edges) - 1, -1, -1):
            # Utterances that do not fill a batch are cropped to the next shorter bucket.
            members = np.concatenate([left, self.shuffle(buckets == bucket, generator)])
            size = int(self.sizes[bucket])
            count = len(members) // size
            chosen.append(members[: count * size])
            sizes += [size] * count
            samples += [int(self.edges[bucket])] * count
            left = members[count * size :]
        if not sizes:  # an epoch smaller than one batch becomes one smaller batch, as long as its shortest bucket
            if not len(left):
                raise UserError("with these weights an epoch has no utterance: raise the weights of the rare corpora")
            chosen.append(left)
            sizes, samples = [len(left)], [int(self.edges[buckets[left].min()])]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return EpochPlan(epoch, np.concatenate(chosen), offsets, np.array(samples), generator.permutation(len(sizes)))

    def choose_buckets(self, epoch: int) -> np.ndarray:
        """Each utterance's bucket; -1 if this epoch does not use it.

        If an epoch uses a share of a corpus, its utterances lie on a circle in a fixed random order. Each epoch
        continues where the last one ended, so all are used equally often.
        """
        if all(share == 1.0 for _, share in self.shares):
            return self.bucket
        chosen = self.bucket.copy()
        for number, (part, share) in enumerate(self.split_corpora(chosen)):
            if share == 1.0:
                continue
            usable = np.flatnonzero(part >= 0).astype(np.uint32)
            used = share * len(usable)  # per epoch; rounded down or up
            start, end = int(epoch * used), int((epoch + 1) * used)
            circle = np.random.default_rng((self.seed, number, len(part))).permutation(usable)
            part[np.roll(circle, -start)[end - start :]] = -1
        return chosen

    def split_corpora(self, values: np.ndarray) -> list[tuple[np.ndarray, float]]:
        """Return the part of each corpus as a view, and the share of it that an epoch uses."""
        ends = np.cumsum([count for count, _ in self.shares])
        return [(part, share) for part, (_, share) in zip(np.split(values, ends[:-1]), self.shares, strict=True)]

    def smallest_batch(self) -> int:
        """The number of utterances of the smallest batch that any epoch can have."""
        occupied = np.unique(self.bucket[self.bucket >= 0])
        epoch = sum(int(share * (part >= 0).sum()) for part, share in self.split_corpora(self.bucket))
        return int(min(self.sizes[occupied].min(), epoch))

    def shuffle(self, members: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The utterances of a mask in random order, in blocks of neighbours."""
        utterances = np.flatnonzero(members).astype(np.uint32)
        if self.block == 1:
            return generator.permutation(utterances)
        shift = int(generator.integers(self.block))  # blocks start at another offset in each epoch
        utterances = np.roll(utterances, shift)
        blocks = generator.permutation(-(-len(utterances) // self.block))
        order = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
        return utterances[order[order < len(utterances)]]

    def require_parts(self, world_size: int, accumulate: int) -> None:
        """Refuse more ranks, or parts of a rank's batch, than the smallest batch has utterances."""
        smallest = self.smallest_batch()
        if smallest < world_size * accumulate:
            parts = f" in {accumulate} parts each" if accumulate > 1 else ""
            most = smallest // accumulate
            hint = f"use at most {most} ranks" if most else f"lower train.accumulate to at most {smallest}"
            raise UserError(
                f"{world_size} ranks{parts} cannot share a batch of {smallest} utterances: {hint}, or raise "
                "batches.seconds"
            )

    def batches(self, epoch: int, index: int) -> Iterator[BatchSpec]:
        """Yield all batches from a position on, without end."""
        while True:
            plan = self.epoch(epoch)
            for at in range(index, len(plan)):
                yield plan[at]
            epoch, index = epoch + 1, 0
