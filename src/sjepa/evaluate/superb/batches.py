"""Batching of utterances as in s3prl: shuffled, by similar length, or by similar label length."""

from collections.abc import Iterator

import numpy as np

WINDOW = 50  # batches per window; sorting by length within a window gives random batches with little padding
LONG = 300_000  # samples; if the first utterance of a batch is longer, s3prl halves the batch


def shuffled_batches(
    number: int, size: int, seed: int, weights: np.ndarray | None = None, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """Yield shuffled batches forever. With `weights`, draw utterances with replacement.

    `drop_last` skips the last batch of an epoch if it is smaller than the others.
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
    """Yield batches of utterances with similar lengths forever."""
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
    """Yield batches of utterances with similar label lengths forever, as s3prl's `ctc` tasks do.

    Utterances are sorted by label length, the longest first. A batch is `size` neighbours from a random start. Each
    start occurs once per epoch. If the first utterance of a batch is long, only the first half of the batch is used.
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
    """Return batches with every utterance once, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    return np.split(order, range(size, len(order), size))
