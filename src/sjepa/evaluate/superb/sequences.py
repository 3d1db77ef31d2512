"""Tasks with a sequence of symbols as label, trained with CTC: ASR, phoneme recognition, slot filling."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.evaluate.superb.batches import label_batches, length_batches
from sjepa.evaluate.superb.decode import decode_greedily
from sjepa.evaluate.superb.heads import FrameHead, RecurrentHead
from sjepa.evaluate.superb.records import Label, Utterance
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.task import Task
from sjepa.evaluate.superb.text import Symbols

WIDTH = 1024  # units per direction of the recurrent head
LITE_WIDTH = 256


class Batching(Enum):
    """How utterances are grouped into batches."""

    BY_LENGTH = "length"
    """By similar length, as in s3prl's ASR."""
    BY_LABEL = "label"
    """By similar label length, as in s3prl's `ctc` tasks, which halve batches of long utterances. On a small corpus,
    whole batches would contain the same words, so the lite protocols do not use it."""


@dataclass(frozen=True)
class SequenceTask(Task):
    """Recognise a sequence of symbols with CTC."""

    symbols: Symbols = field(kw_only=True)
    recurrent: int = 0
    """Width of the recurrent head. 0 uses two linear layers instead."""
    augment: SpecAugment | None = None
    batching: Batching = Batching.BY_LENGTH
    numbers: dict[Label, list[int]] = field(init=False, repr=False)
    """Encoded labels of all parts. Encoding them first reports invalid labels before training."""

    def __post_init__(self) -> None:
        numbers = {u.label: self.symbols.encode(str(u.label)) for fold in self.folds for u in fold.utterances}
        object.__setattr__(self, "numbers", numbers)

    @property
    def augmentation(self) -> SpecAugment | None:
        return self.augment

    def batches(self, utterances: Sequence[Utterance], samples: np.ndarray, seed: int) -> Iterator[np.ndarray]:
        if self.batching is Batching.BY_LENGTH:
            return length_batches(samples, self.recipe.batch, seed)
        labels = np.array([len(self.numbers[u.label]) for u in utterances])
        return label_batches(labels, samples, self.recipe.batch, seed)

    def head(self, dimension: int) -> nn.Module:
        outputs = len(self.symbols.symbols)
        return RecurrentHead(dimension, outputs, self.recurrent) if self.recurrent else FrameHead(dimension, outputs)

    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor:
        targets = [self.numbers[label] for label in labels]
        lengths = torch.tensor([len(target) for target in targets])
        joined = torch.tensor(list(itertools.chain.from_iterable(targets)), device=outputs.device)
        log_probabilities = outputs.log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_probabilities, joined, frames, lengths, zero_infinity=True)

    def predict(self, outputs: Tensor, frames: Tensor) -> list[Label]:
        best = zip(outputs.argmax(-1).tolist(), frames.tolist(), strict=True)
        return [self.symbols.transcribe(decode_greedily(row[:count])) for row, count in best]

    def score(self, predictions: Sequence[Label], references: Sequence[Label]) -> dict[str, float]:
        # Encode and decode references too. In slot filling, a character without a symbol becomes `<unk>`, which counts
        # as five characters in CER, as in s3prl.
        wanted = [self.symbols.transcribe(self.numbers[label]) for label in references]
        return super().score([str(prediction) for prediction in predictions], wanted)

    def complete(self, words: str) -> str:
        return self.symbols.complete(words)

    def as_text(self, prediction: Label) -> str:
        return " ".join(str(prediction).split())

    def answers(self) -> tuple[str, ...]:
        return self.symbols.symbols
