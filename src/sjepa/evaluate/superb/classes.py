"""Classification of whole utterances, with one or more slots: emotion, keyword, intent, speaker."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.evaluate.superb.batches import shuffled_batches
from sjepa.evaluate.superb.entry import Entry, Request
from sjepa.evaluate.superb.heads import UtteranceHead
from sjepa.evaluate.superb.records import Fold, Label, Utterance, reduce_folds, sample_evenly
from sjepa.evaluate.superb.task import Task

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class ClassTask(Task):
    """Predict one class per slot for a whole utterance."""

    balanced: bool = False
    """Whether training draws classes equally often."""
    optional: bool = False
    """Whether a slot may be empty."""
    classes: list[list[str]] = field(init=False)
    """Class names of each slot, from the training part."""
    numbers: dict[Label, tuple[int, ...]] = field(init=False, repr=False)
    """Class indices of each training label."""

    def __post_init__(self) -> None:
        labels = {u.label for fold in self.folds for u in fold.train}
        if any(isinstance(label, str) for label in labels):
            raise TypeError("the label of a class task is a tuple with one class per slot, such as ('north',)")
        slots = range(len(next(iter(labels))))
        classes = [sorted({label[slot] for label in labels}) for slot in slots]
        if any(len(names) < 2 for names in classes):
            raise UserError(
                f"{self.folds[0].name}: training has a slot with a single class, so there is nothing to learn"
            )
        places = [{name: place for place, name in enumerate(names)} for names in classes]
        numbers = {label: tuple(place[name] for place, name in zip(places, label, strict=True)) for label in labels}
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "numbers", numbers)

    def head(self, dimension: int) -> nn.Module:
        return UtteranceHead(dimension, sum(map(len, self.classes)))

    def split_slots(self, outputs: Tensor) -> list[tuple[Tensor, list[str]]]:
        """Return outputs and class names of each slot."""
        return list(zip(outputs.split([len(names) for names in self.classes], dim=1), self.classes, strict=True))

    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor:
        total = outputs.new_zeros(())
        wanted = torch.tensor([self.numbers[label] for label in labels], device=outputs.device)
        for (logits, _), slot in zip(self.split_slots(outputs), wanted.unbind(1), strict=True):
            total = total + F.cross_entropy(logits, slot)
        return total

    def predict(self, outputs: Tensor, frames: Tensor) -> list[Label]:
        columns = [[names[i] for i in logits.argmax(1).tolist()] for logits, names in self.split_slots(outputs)]
        return list(zip(*columns, strict=True))

    def chance(self, fold: Fold) -> dict[str, float]:
        """Return the test scores of always predicting the most frequent training label.

        If slots may be empty, most labels are unique. The most frequent value of each slot is then used instead.
        """
        labels = [u.label for u in fold.train]
        columns = [[value for value in values if value] for values in zip(*labels, strict=True)]
        answer = tuple(map(most_common_item, columns)) if self.optional else most_common_item(labels)
        return self.score([answer] * len(fold.test), [u.label for u in fold.test])

    def batches(self, utterances: Sequence[Utterance], samples: np.ndarray, seed: int) -> Iterator[np.ndarray]:
        if not self.balanced:
            return super().batches(utterances, samples, seed)
        counts = Counter(u.label for u in utterances)
        weights = np.array([1 / counts[u.label] for u in utterances])
        return shuffled_batches(len(utterances), self.recipe.batch, seed, weights, drop_last=True)

    def answers(self) -> list[list[str]]:
        return self.classes


def make_class_task(
    entry: Entry,
    request: Request,
    folds: list[Fold],
    *,
    choose: Callable[[Sequence[Utterance], int], list[Utterance]] = sample_evenly,
    balanced: bool = False,
    optional: bool = False,
) -> ClassTask:
    """Make a classification task. In the lite protocol, `choose` selects a part of the corpus."""
    folds = reduce_folds(folds, choose) if request.lite else folds
    return entry.task(ClassTask, request, folds, balanced=balanced, optional=optional)


def most_common_item(items: Sequence[T]) -> T:
    """Return the most frequent item, the first if there are several."""
    return Counter(items).most_common(1)[0][0]
