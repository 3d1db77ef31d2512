"""The real corpora, if they are available: the readers find everything that their authors document."""

from collections import Counter
from pathlib import Path

import pytest
from test_real_corpora import extracted

from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.metrics import ACCURACY
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.upstream import load_upstream


@pytest.fixture(scope="module")
def dev_clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dev-clean")
    return extracted(folder, "librispeech-dev-clean-a.tar", "librispeech-dev-clean-b.tar")


def test_dev_clean_is_split_by_speaker_for_recognition(dev_clean: Path) -> None:
    (fold,) = make_task("asr", dev_clean, lite=True).folds
    parts = [{u.speaker for u in part} for part in (fold.train, fold.dev, fold.test)]
    assert [len(part) for part in parts] == [28, 4, 8]
    assert len(set.union(*parts)) == 40
    assert len(fold.train) + len(fold.dev) + len(fold.test) == 2703


def test_dev_clean_phones_are_the_39_of_arpabet(dev_clean: Path) -> None:
    task = make_task("pr", dev_clean, lite=True)
    assert isinstance(task, SequenceTask)
    assert len(task.symbols.symbols) == 3 + 39
    utterance = next(u for u in task.folds[0].train + task.folds[0].dev + task.folds[0].test if u.name.endswith("0000"))
    assert 1 < len(str(utterance.label).split()) < 400


def test_dev_clean_has_labels_for_every_probe(dev_clean: Path) -> None:
    corpus = read_labelled(dev_clean)
    assert len(corpus) == 2703
    assert Counter({item.speaker: item.gender for item in corpus}.values()) == {"F": 20, "M": 20}
    assert len({item.chapter for item in corpus}) == 97
    assert all(len(item.phones) > 100 for item in corpus)


def test_ravdess_accuracy_is_above_chance_on_new_actors(tmp_path: Path) -> None:
    task = make_task("ravdess", extracted(tmp_path / "data", "ravdess-speech.tar"))
    assert isinstance(task, ClassTask)
    assert sum(len(fold.test) for fold in task.folds) == 1430
    assert [len({u.speaker for u in fold.test}) for fold in task.folds] == [5, 5, 4, 5, 5]
    assert [len(names) for names in task.classes] == [8]
    short = ClassTask("ravdess", Recipe(80, 1e-3, 32, 1, 80, "lite"), task.folds[:1], (ACCURACY,))
    results = LearningRateSearch(short, load_upstream("logmel"), tmp_path / "out").run([1e-3])
    assert results["metrics"]["accuracy"] > 100 / 8 + 8


def test_coffee_orders_have_six_slots(tmp_path: Path) -> None:
    task = make_task("coffee", extracted(tmp_path / "data", "coffee-orders.tar"))
    assert isinstance(task, ClassTask)
    (fold,) = task.folds
    assert len(fold.train) + len(fold.dev) + len(fold.test) == 619
    assert len(task.classes) == 6
    assert {len(names) for names in task.classes[:1]} == {10}
