"""The sample of a stream of frames, on one rank and on many."""

import threading

import numpy as np
import pytest
import torch
from scipy import stats

from sjepa import distributed
from sjepa.targets.reservoir import Reservoir


def test_the_reservoir_is_uniform_over_the_stream() -> None:
    hits = np.zeros(300)
    for seed in range(400):
        reservoir = Reservoir(30, seed)
        for start in range(0, 300, 50):  # five utterances of ten frames a batch
            frames = torch.arange(start, start + 50.0).view(5, 10, 1)
            reservoir.add(frames, np.arange(start // 10, start // 10 + 5))
        sample = reservoir.gather()[:, 0].long().numpy()
        assert len(set(sample)) == 30
        hits[sample] += 1
    assert stats.chisquare(hits).pvalue > 0.001


def test_the_reservoir_does_not_depend_on_the_order_of_the_stream() -> None:
    features = torch.randn(8, 20, 3)
    samples = []
    for order in (range(8), reversed(range(8))):
        reservoir = Reservoir(40, 5)
        for u in order:
            reservoir.add(features[u : u + 1], np.array([u]))
        samples.append(reservoir.gather())
    assert torch.equal(samples[0], samples[1])


def test_the_reservoir_holds_the_smallest_keys_and_little_more() -> None:
    """Of a stream that is sorted out many times, against all keys sorted at once."""
    numbers = torch.arange(200 * 10.0).view(200, 10, 1)
    reservoir, most = Reservoir(50, 7), 0
    for u in range(200):
        reservoir.add(numbers[u : u + 1], np.array([u]))
        most = max(most, sum(map(len, reservoir.parts)))
    keys = np.concatenate([np.random.default_rng((7, u)).random(10) for u in range(200)])
    assert reservoir.gather()[:, 0].tolist() == np.argsort(keys)[:50].tolist()
    assert most < 75


class ThreadGroup:
    """Collectives among threads of this process, as many as a large cluster has ranks; counts what a rank receives."""

    def __init__(self, world_size: int):
        self.size = world_size
        self.barrier = threading.Barrier(world_size)
        self.local = threading.local()
        self.slots: list[torch.Tensor] = [torch.empty(0)] * world_size
        self.received = [0] * world_size

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.slots[self.local.rank] = tensor
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        self.received[self.local.rank] += sum(t.numel() * t.element_size() for t in found)
        return found

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.slots[self.local.rank] = tensor
        self.barrier.wait()
        total = torch.stack(self.slots).sum(0)
        self.barrier.wait()
        return total


def test_128_ranks_agree_on_the_sample_of_one_and_receive_little_more_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, size, dimension = 128, 2000, 32
    utterances = torch.randn(512, 30, dimension)
    alone = Reservoir(size, 3)
    for u in range(512):
        alone.add(utterances[u : u + 1], np.array([u]))
    expected = alone.gather()

    group = ThreadGroup(ranks)
    monkeypatch.setattr(distributed, "world_size", lambda: ranks)
    monkeypatch.setattr(distributed, "gather_tensors", group.gather)
    monkeypatch.setattr(distributed, "sum_over_ranks", group.sum)
    samples: list[torch.Tensor] = [torch.empty(0)] * ranks

    def work(rank: int) -> None:
        group.local.rank = rank
        reservoir = Reservoir(size, 3)
        for u in range(rank, 512, ranks):
            reservoir.add(utterances[u : u + 1], np.array([u]))
        samples[rank] = reservoir.gather()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(sample, expected) for sample in samples)
    of_one = size * (dimension * 4 + 8)  # frames and keys of one sample
    # Each rank pads what it sends to the most that any rank sends: about twice the mean, with so few frames per rank.
    assert max(group.received) < 2.5 * of_one
    assert of_one * ranks / max(group.received) > 40  # what every rank's full reservoir would have taken
