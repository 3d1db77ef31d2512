"""Base class of tasks: data, head, loss, predictions and scores."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sjepa.evaluate.metric import Metric, SectionKind
from sjepa.evaluate.superb.batches import shuffled_batches
from sjepa.evaluate.superb.records import Fold, Label, Utterance
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.submission import Submission

LITE_RATE = 1e-3
MAX_EVALUATIONS = 10  # on dev, in the lite protocol
CLIP = 1.0


@dataclass(frozen=True)
class Recipe:
    """Training settings. A step is an optimizer step over `batch` x `accumulate` utterances, with a constant rate."""

    steps: int
    lr: float
    batch: int
    accumulate: int
    evaluate_every: int
    name: str = "full"

    def lite(self, steps: int) -> "Recipe":
        """Return the lite recipe. Few steps need a higher learning rate than the protocol's 1e-4."""
        return replace(
            self, steps=steps, lr=max(self.lr, LITE_RATE), evaluate_every=-(-steps // MAX_EVALUATIONS), name="lite"
        )


@dataclass(frozen=True)
class Task(ABC):
    """A task with its data. Subclasses define the head, the loss and the predictions."""

    name: str
    recipe: Recipe
    folds: list[Fold]
    metrics: tuple[Metric, ...]
    selects: str = ""
    section: SectionKind = SectionKind.OTHER
    submission: Submission | None = None

    @property
    def selection(self) -> Metric:
        """The metric for selection on dev: `selects`, or the first."""
        return next(metric for metric in self.metrics if self.selects in ("", metric.name))

    @property
    def augmentation(self) -> SpecAugment | None:
        """Augmentation of features in training."""
        return None

    @property
    def clip(self) -> float:
        """Largest gradient norm. Larger gradients are scaled down."""
        return CLIP

    @abstractmethod
    def head(self, dimension: int) -> nn.Module:
        """Make a head that maps features (B, T, D) and frame counts to outputs."""

    @abstractmethod
    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor: ...

    def weight(self, labels: Sequence[Label]) -> float:
        """Return the number of terms that the loss averages: the weight of a part of a batch."""
        return float(len(labels))

    @abstractmethod
    def predict(self, outputs: Tensor, frames: Tensor) -> list[Any]:
        """Return a prediction for each utterance of a batch."""

    @abstractmethod
    def answers(self) -> Any:
        """Return all possible answers as JSON values. They are part of the label hash."""

    def batches(self, utterances: Sequence[Utterance], samples: np.ndarray, seed: int) -> Iterator[np.ndarray]:
        """Yield indices of training batches forever. By default, utterances are shuffled."""
        return shuffled_batches(len(utterances), self.recipe.batch, seed)

    def optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr)

    def score(self, predictions: Sequence[Any], references: Sequence[Label]) -> dict[str, float]:
        return {metric.name: metric.score(predictions, references) for metric in self.metrics if metric.score}

    def score_part(self, predictions: Sequence[Any], utterances: Sequence[Utterance]) -> dict[str, float]:
        """Score a part of the corpus. A task that compares utterances with each other also needs their names."""
        return self.score(predictions, [utterance.label for utterance in utterances])

    def chance(self, fold: Fold) -> dict[str, float]:
        """Return the scores of the best constant answer, if that is a meaningful baseline."""
        return {}

    def complete(self, words: str) -> Any:
        """Convert the words of a decoder to a prediction."""
        return words

    def as_text(self, prediction: Any) -> str:
        """Format a prediction or a label on one line."""
        return prediction if isinstance(prediction, str) else ", ".join(prediction)

    def listing(self, predictions: Sequence[Any], utterances: Sequence[Utterance]) -> str:
        """Return the contents of `predictions.txt`: name, prediction and reference of each utterance, with tabs."""
        rows = zip(utterances, predictions, strict=True)
        return "".join(f"{u.name}\t{self.as_text(p)}\t{self.as_text(u.label)}\n" for u, p in rows)

    def submitted_files(
        self, predictions: Sequence[Any], utterances: Sequence[Utterance], fold: int
    ) -> Mapping[str, str | bytes]:
        """Return the prediction files for the SUPERB leaderboard, by name."""
        return {} if self.submission is None else self.submission.files(utterances, predictions, fold)
