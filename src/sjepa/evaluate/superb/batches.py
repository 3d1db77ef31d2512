"""Which utterances share a batch: freely shuffled, of like length, or of like label length, as s3prl has them."""

from collections.abc import Iterator

import numpy as np

WINDOW = 50  # batches within which utterances are sorted by length: random enough, and little padding
LONG = 300_000  # samples of a batch's first utterance from which s3prl takes half of the batch


def shuffled_batches(
    number: int, size: int, seed: int, weights: np.ndarray | None = None, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """Batches without end, whatever the lengths; with `weights` utterances are drawn with replacement.

    `drop_last` leaves out an epoch's last batch if it is smaller than the others.
    """
    epoch = 0
    while True:
        generator = np.random.default_rng((seed, epoch))
        if weights is None:
            order = generator.permutation(number)
        else:
            order = generator.choice(number, number, p=weights / weights.sum())
        batches = np.split(order, range(size, number, size))
        yield from batches[:-1] if drop_last and len(batches) > 1 and len(batches[-1]) < size else batches
        epoch += 1


def length_batches(lengths: np.ndarray, size: int, seed: int) -> Iterator[np.ndarray]:
    """Batches without end, utterances of like length together."""
    epoch = 0
    while True:
        generator = np.random.default_rng((seed, epoch))
        order = generator.permutation(len(lengths))
        batches: list[np.ndarray] = []
        for first in range(0, len(order), WINDOW * size):
            window = order[first : first + WINDOW * size]
            window = window[np.argsort(lengths[window], kind="stable")]
            batches += np.split(window, range(size, len(window), size))
        for index in generator.permutation(len(batches)):
            yield batches[index]
        epoch += 1


def label_batches(labels: np.ndarray, lengths: np.ndarray, size: int, seed: int) -> Iterator[np.ndarray]:
    """Batches without end, labels of like length together, as s3prl's `ctc` tasks have them.

    Utterances are sorted by the length of their label, the longest first. A batch is `size` neighbours from a place
    drawn at random; every place comes once per epoch. If the first of a batch is long, its first half is taken.
    """
    order = np.argsort(-labels, kind="stable")
    epoch = 0
    while True:
        for place in np.random.default_rng((seed, epoch)).permutation(len(order)):
            first = max(0, min(place, len(order) - size))
            batch = order[first : first + size]
            yield batch[: len(batch) // 2] if lengths[batch[0]] > LONG and len(batch) > 1 else batch
        epoch += 1


def testing_batches(lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Every utterance once, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    return np.split(order, range(size, len(order), size))
