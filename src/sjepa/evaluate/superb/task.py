"""What a task is to the protocol: data, a head, a loss, predictions and their scores."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.evaluate.metric import Metric, SectionKind
from sjepa.evaluate.superb.batches import shuffled_batches
from sjepa.evaluate.superb.records import Fold, Label, Utterance
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.submission import Submission

if TYPE_CHECKING:
    from sjepa.evaluate.superb.search import Search

LITE_RATE = 1e-3
LOOKS = 10  # at dev, at most
CLIP = 1.0


@dataclass(frozen=True)
class Recipe:
    """A constant learning rate; a step is an optimizer step over `batch` x `accumulate` utterances."""

    steps: int
    lr: float
    batch: int
    accumulate: int
    evaluate_every: int
    name: str = "full"

    def lite(self, steps: int) -> "Recipe":
        """So few steps need a higher rate than the protocol's 1e-4."""
        return replace(self, steps=steps, lr=max(self.lr, LITE_RATE), evaluate_every=-(-steps // LOOKS), name="lite")


@dataclass(frozen=True)
class Task(ABC):
    """A task whose corpus is read. Subclasses add the head, the loss and the predictions."""

    name: str
    recipe: Recipe
    folds: list[Fold]
    metrics: tuple[Metric, ...]
    selects: str = ""
    section: SectionKind = SectionKind.OTHER
    submission: Submission | None = None

    @property
    def selection(self) -> Metric:
        """The metric that dev selects by: the one named, or the first."""
        return next(metric for metric in self.metrics if self.selects in ("", metric.name))

    @property
    def augmentation(self) -> SpecAugment | None:
        """What is done to features in training."""
        return None

    @property
    def clip(self) -> float:
        """The largest norm of a step's gradient; a larger one is scaled down."""
        return CLIP

    @abstractmethod
    def head(self, dimension: int) -> nn.Module:
        """A new head: features (B, T, D) and the frames of each utterance to outputs."""

    @abstractmethod
    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor: ...

    def weight(self, labels: Sequence[Label]) -> float:
        """What a loss is a mean over: how much a part of a batch counts in the loss of all of it."""
        return float(len(labels))

    @abstractmethod
    def predict(self, outputs: Tensor, frames: Tensor) -> list[Any]:
        """A prediction for each utterance of a batch."""

    @abstractmethod
    def answers(self) -> Any:
        """All that can be answered, as JSON can hold it: a part of the labelling."""

    def batches(self, utterances: Sequence[Utterance], samples: np.ndarray, seed: int) -> Iterator[np.ndarray]:
        """Places of the utterances of each training batch, without end: shuffled freely."""
        return shuffled_batches(len(utterances), self.recipe.batch, seed)

    def optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr)

    def evaluation(self) -> "type[Search]":
        """How the task is run. A task that trains nothing names another search."""
        from sjepa.evaluate.superb.protocol import Evaluation

        return Evaluation

    def score(self, predictions: Sequence[Any], references: Sequence[Label]) -> dict[str, float]:
        return {metric.name: metric.score(predictions, references) for metric in self.metrics if metric.score}

    def score_part(self, predictions: Sequence[Any], utterances: Sequence[Utterance]) -> dict[str, float]:
        """Scores of a part of the corpus. A task that compares utterances with each other needs their names too."""
        return self.score(predictions, [utterance.label for utterance in utterances])

    def chance(self, fold: Fold) -> dict[str, float]:
        """Scores of the best constant answer; none where no constant answer is a fair guess."""
        return {}

    def complete(self, words: str) -> Any:
        """The prediction for the words that a decoder found."""
        return words

    def as_text(self, prediction: Any) -> str:
        """A prediction, or a label, on one line."""
        return prediction if isinstance(prediction, str) else ", ".join(prediction)

    def listing(self, predictions: Sequence[Any], utterances: Sequence[Utterance]) -> str:
        """What stands in `predictions.txt`: name, prediction and reference of each utterance, divided by tabs."""
        rows = zip(utterances, predictions, strict=True)
        return "".join(f"{u.name}\t{self.as_text(p)}\t{self.as_text(u.label)}\n" for u, p in rows)

    def submitted_files(
        self, predictions: Sequence[Any], utterances: Sequence[Utterance], fold: int
    ) -> Mapping[str, str | bytes]:
        """Files of the test predictions as SUPERB's board expects them, by their names."""
        return {} if self.submission is None else self.submission.files(utterances, predictions, fold)
