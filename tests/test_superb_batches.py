"""Training batches of the tasks, compared with those of s3prl's loaders."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from sjepa.evaluate.superb.batches import label_batches, shuffled_batches
from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.metrics import PER
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.sequences import Batching, SequenceTask
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import find_entry
from sjepa.evaluate.superb.text import Phones

RECIPE = Recipe(steps=10, lr=1e-3, batch=8, accumulate=1, evaluate_every=5)


def utterances(labels: list[str] | list[tuple[str, ...]]) -> list[Utterance]:
    return [Utterance(str(number), Path(f"{number}.wav"), label) for number, label in enumerate(labels)]


@pytest.mark.parametrize("name", ["er", "ic", "sid"])
def test_batches_of_classes_do_not_follow_the_lengths(name: str) -> None:
    made = utterances([("a",), ("b",)] * 400)
    task = ClassTask(name, RECIPE, [Fold("all", made, made, made)], find_entry(name).metrics)
    lengths = np.arange(800)
    batches = list(itertools.islice(task.batches(made, lengths, 0), 100))
    assert sorted(np.concatenate(batches).tolist()) == list(range(800))  # an epoch has every utterance once
    spreads = [np.ptp(lengths[batch]) for batch in batches]
    # Of 8 uniform numbers below 800 the spread is 7/9 of it; utterances of like length lie within 20.
    assert np.mean(spreads) == pytest.approx(800 * 7 / 9, rel=0.05)


def test_keywords_are_drawn_equally_often_in_full_batches() -> None:
    made = utterances([("rare",)] * 3 + [("common",)] * 300)
    task = ClassTask("ks", RECIPE, [Fold("all", made, made, made)], find_entry("ks").metrics, balanced=True)
    batches = list(itertools.islice(task.batches(made, np.ones(303), 0), 370))
    assert {len(batch) for batch in batches} == {8}
    assert np.mean(np.concatenate(batches) < 3) == pytest.approx(0.5, abs=0.03)


def test_other_classes_keep_the_last_batch_of_an_epoch() -> None:
    sizes = [len(batch) for batch in itertools.islice(shuffled_batches(20, 8, 0), 6)]
    assert sizes == [8, 8, 4, 8, 8, 4]


def s3prl_bucket(labels: list[int], samples: list[int], index: int, size: int) -> list[int]:
    """`LibriPhoneDataset.__getitem__` and `collect_audio_batch` of s3prl, written out."""
    files = sorted(range(len(labels)), reverse=True, key=lambda file: labels[file])
    index = min(len(files) - size, index)
    batch = files[index : index + size]
    return batch[: len(batch) // 2] if samples[batch[0]] > 300_000 and len(batch) > 1 else batch


def test_phonemes_and_slots_share_batches_as_in_s3prl() -> None:
    generator = np.random.default_rng(0)
    labels = generator.permutation(60).tolist()
    samples = [6000 * label for label in labels]
    batches = [
        batch.tolist() for batch in itertools.islice(label_batches(np.array(labels), np.array(samples), 8, 0), 60)
    ]
    expected = [s3prl_bucket(labels, samples, index, 8) for index in range(60)]
    assert sorted(batches) == sorted(expected)
    assert {len(batch) for batch in batches} == {8, 4}
    assert batches != expected  # in random order
    few = next(label_batches(np.array([2, 5]), np.array([100, 100]), 8, 0))
    assert few.tolist() == [1, 0]


def test_a_task_of_labels_halves_a_batch_whose_first_utterance_is_long() -> None:
    made = utterances([" ".join("A" * (number + 1)) for number in range(8)])
    fold = Fold("all", made, made, made)
    task = SequenceTask("pr", RECIPE, [fold], (PER,), symbols=Phones(("A",)), batching=Batching.BY_LABEL)
    short, long = np.full(8, 300_000), np.array([100] * 7 + [300_001])
    assert next(task.batches(made, short, 0)).tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert next(task.batches(made, long, 0)).tolist() == [7, 6, 5, 4]
