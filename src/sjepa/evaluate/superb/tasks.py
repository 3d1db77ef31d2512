"""The tasks: what each trains, on what, for how long, and how it is scored. Two families: sequences and classes."""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.evaluate.superb import TaskName, corpora, librispeech, metrics
from sjepa.evaluate.superb.decode import greedy
from sjepa.evaluate.superb.heads import FrameHead, RecurrentHead, UtteranceHead
from sjepa.evaluate.superb.records import Fold, Label, Utterance, some, some_of_each
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.text import Characters, Phones, SlotCharacters, Symbols, read_slot_names

T = TypeVar("T", bound=Hashable)
Score = Callable[[Sequence[str], Sequence[str]], float]
LOWER_IS_BETTER = frozenset({"wer", "cer", "per", "slot_value_cer"})
LITE_RATE = 1e-3
LITE_WIDTH = 256  # of each direction of the recurrent head, 1024 in full
LITE_SPEAKERS = 100
LOOKS = 10  # at dev, at most
LITE_UTTERANCES = (2000, 400, 800)  # train, dev, test; LibriSpeech has dev-clean alone instead


@dataclass(frozen=True)
class Recipe:
    """Adam with a constant rate; a step is an optimizer step over `batch` x `accumulate` utterances."""

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
class SequenceTask:
    """CTC over symbols: speech recognition, phoneme recognition, slot filling."""

    name: str
    recipe: Recipe
    folds: list[Fold]
    symbols: Symbols
    scores: dict[str, Score]
    recurrent: int = 0
    """Width of the recurrent head; 0 has two linear layers instead."""
    augment: SpecAugment | None = None
    numbers: dict[Label, list[int]] = field(init=False, repr=False)
    """Every label of all parts in symbols: one that they cannot write is refused before any training."""

    def __post_init__(self) -> None:
        numbers = {u.label: self.symbols.encode(str(u.label)) for fold in self.folds for u in everyone(fold)}
        object.__setattr__(self, "numbers", numbers)

    @property
    def selection(self) -> str:
        """The score by which dev selects: the first."""
        return next(iter(self.scores))

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
        return [self.symbols.decode(greedy(row[:count])) for row, count in best]

    def score(self, predictions: Sequence[Label], references: Sequence[Label]) -> dict[str, float]:
        # References pass through the symbols: in slot filling a character without one is `<unk>`, all five of them in
        # reference and CER, as in s3prl.
        wanted = [self.symbols.decode(self.numbers[label]) for label in references]
        return {name: score([str(p) for p in predictions], wanted) for name, score in self.scores.items()}

    def chance(self, fold: Fold) -> dict[str, float]:
        """Nothing: no text is a fair guess."""
        return {}

    def weights(self, utterances: Sequence[Utterance]) -> None:
        return None


@dataclass(frozen=True)
class ClassTask:
    """One class a slot for a whole utterance: emotion, keyword, intent, speaker, coffee."""

    name: str
    recipe: Recipe
    folds: list[Fold]
    balanced: bool = False
    """Draw classes equally often in training, and select by the mean over classes."""
    optional: bool = False
    """A slot may be empty; then slots and values are scored together by F1."""
    augment: None = None
    classes: list[list[str]] = field(init=False)
    """Names that training knows, for each slot."""
    numbers: dict[Label, tuple[int, ...]] = field(init=False, repr=False)
    """Training's labels as the places of their classes."""

    def __post_init__(self) -> None:
        labels = {u.label for fold in self.folds for u in fold.train}
        slots = range(len(next(iter(labels))))
        classes = [sorted({label[slot] for label in labels}) for slot in slots]
        if any(len(names) < 2 for names in classes):
            raise UserError(f"{self.folds[0].name}: training has a slot with a single class, so nothing to learn")
        places = [{name: place for place, name in enumerate(names)} for names in classes]
        numbers = {label: tuple(place[name] for place, name in zip(places, label, strict=True)) for label in labels}
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "numbers", numbers)

    @property
    def selection(self) -> str:
        return "balanced_accuracy" if self.balanced else "slot_f1" if self.optional else "accuracy"

    def head(self, dimension: int) -> nn.Module:
        return UtteranceHead(dimension, sum(map(len, self.classes)))

    def divide(self, outputs: Tensor) -> list[tuple[Tensor, list[str]]]:
        """Outputs and class names of each slot."""
        return list(zip(outputs.split([len(names) for names in self.classes], dim=1), self.classes, strict=True))

    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor:
        total = outputs.new_zeros(())
        wanted = torch.tensor([self.numbers[label] for label in labels], device=outputs.device)
        for (logits, _), slot in zip(self.divide(outputs), wanted.unbind(1), strict=True):
            total = total + F.cross_entropy(logits, slot)
        return total

    def predict(self, outputs: Tensor, frames: Tensor) -> list[Label]:
        columns = [[names[i] for i in logits.argmax(1).tolist()] for logits, names in self.divide(outputs)]
        return list(zip(*columns, strict=True))

    def score(self, predictions: Sequence[Label], references: Sequence[Label]) -> dict[str, float]:
        results = {"accuracy": metrics.accuracy(predictions, references)}
        if self.balanced:
            results["balanced_accuracy"] = metrics.balanced_accuracy(predictions, references)
        if self.optional:
            results = {"slot_f1": self.slot_f1(predictions, references), **results}
        return results

    def slot_f1(self, predictions: Sequence[Label], references: Sequence[Label]) -> float:
        """F1 of slots and their values over all utterances; a slot that is not there has no value."""

        def pairs(labels: Sequence[Label]) -> set[Hashable]:
            return {(i, slot, value) for i, label in enumerate(labels) for slot, value in enumerate(label) if value}

        found, wanted = pairs(predictions), pairs(references)
        return 100.0 * 2 * len(found & wanted) / max(1, len(found) + len(wanted))

    def chance(self, fold: Fold) -> dict[str, float]:
        """Scores on test of one answer to everything: the label that training has most often.

        Where slots may be empty, whole labels are nearly all different, and it is each slot's most frequent value.
        """
        labels = [u.label for u in fold.train]
        columns = [[value for value in values if value] for values in zip(*labels, strict=True)]
        answer = tuple(map(most_frequent, columns)) if self.optional else most_frequent(labels)
        return self.score([answer] * len(fold.test), [u.label for u in fold.test])

    def weights(self, utterances: Sequence[Utterance]) -> list[float] | None:
        counts = Counter(u.label for u in utterances)
        return [1 / counts[u.label] for u in utterances] if self.balanced else None


def most_frequent(items: Sequence[T]) -> T:
    """Of several the first."""
    return Counter(items).most_common(1)[0][0]


Task = SequenceTask | ClassTask
RECOGNITION: dict[str, Score] = {"wer": metrics.word_error_rate, "cer": metrics.character_error_rate}
SLOTS: dict[str, Score] = {"slot_type_f1": metrics.slot_type_f1, "slot_value_cer": metrics.slot_value_cer}
# Steps, rate, batch, accumulation and selection as s3prl has them; then the steps of the lite protocol.
RECIPES = {
    "asr": (Recipe(200_000, 1e-4, 16, 1, 2000), 3000),
    "pr": (Recipe(100_000, 1e-2, 16, 2, 1000), 1000),
    "sf": (Recipe(200_000, 1e-4, 32, 1, 2000), 2000),
    "er": (Recipe(30_000, 1e-4, 4, 8, 1000), 1000),
    "ks": (Recipe(200_000, 1e-4, 32, 1, 5000), 1000),
    "ic": (Recipe(200_000, 1e-4, 32, 1, 5000), 2000),
    "sid": (Recipe(200_000, 1e-4, 8, 4, 4000), 2000),
    "ravdess": (Recipe(30_000, 1e-4, 4, 8, 1000), 1000),
    "coffee": (Recipe(200_000, 1e-4, 32, 1, 5000), 2000),
}


def make_task(
    name: TaskName, data: Path, *, lite: bool = False, steps: int | None = None, lexicon: Path | None = None
) -> Task:
    """Read a task's corpus and settle its protocol; `steps` changes the length of the lite protocol only."""
    if not data.is_dir():
        raise UserError(f"there is no folder {data}")
    if steps is not None and not lite:
        raise UserError("--steps is for --lite; the full protocol has its own number of steps")
    recipe, lite_steps = RECIPES[name]
    if steps is not None and steps < 1:
        raise UserError(f"--steps {steps}: at least one step is needed")
    recipe = recipe.lite(steps or lite_steps) if lite else recipe
    width = LITE_WIDTH if lite else 1024
    if name == "asr":
        fold = librispeech.dev_clean_fold(data) if lite else librispeech.standard_fold(data)
        return SequenceTask(name, recipe, [fold], Characters(), RECOGNITION, width, SpecAugment())
    if name == "pr":
        fold, phones = phone_fold(data, lite, lexicon)
        return SequenceTask(name, recipe, [fold], phones, {"per": metrics.word_error_rate})
    if name == "sf":
        folds = reduced(corpora.snips(data), some) if lite else corpora.snips(data)
        folder = data / "SNIPS" if (data / "SNIPS").is_dir() else data
        symbols = SlotCharacters(read_slot_names(folder / "slots.txt"))
        return SequenceTask(name, recipe, folds, symbols, SLOTS, width, SpecAugment(adaptive=True))
    read = {
        "er": corpora.iemocap,
        "ks": corpora.speech_commands,
        "ic": corpora.fluent_commands,
        "sid": corpora.voxceleb,
        "ravdess": corpora.ravdess,
        "coffee": corpora.coffee,
    }[name]
    folds = read(data)
    balanced = name == "ks"
    if name == "sid" and lite:
        folds = [few_speakers(fold, LITE_SPEAKERS) for fold in folds]
    if lite:
        folds = reduced(folds, some_of_each if balanced else some)
    return ClassTask(name, recipe, folds, balanced=balanced, optional=name == "coffee")


def reduced(folds: list[Fold], choose: Callable[[Sequence[Utterance], int], list[Utterance]]) -> list[Fold]:
    """The lite protocol's part of a corpus: so many utterances of each part."""
    train, dev, test = LITE_UTTERANCES
    return [Fold(f.name, choose(f.train, train), choose(f.dev, dev), choose(f.test, test)) for f in folds]


def few_speakers(fold: Fold, most: int) -> Fold:
    """The first speakers alone, so that each has more than an utterance or two to learn from."""
    kept = set(sorted({u.speaker for u in fold.train})[:most])
    train, dev, test = ([u for u in part if u.speaker in kept] for part in (fold.train, fold.dev, fold.test))
    return Fold(fold.name, train, dev, test)


def phone_fold(data: Path, lite: bool, lexicon: Path | None) -> tuple[Fold, Phones]:
    """Phoneme labels: SUPERB's from a lexicon with stress; in lite without a lexicon, those that were aligned."""
    fold = librispeech.dev_clean_fold(data) if lite else librispeech.standard_fold(data)
    if lexicon is None and not lite:
        raise UserError("phoneme recognition needs its pronunciations: --lexicon librispeech-lexicon.txt")
    if lexicon is not None:
        words = librispeech.read_lexicon(lexicon)
        missing = {word for u in everyone(fold) for word in str(u.label).split()} - words.keys()
        if missing:
            raise UserError(f"{lexicon} lacks {len(missing)} words of the transcripts, first {min(missing)}")
        pronounce = {u.name: " ".join(words[w] for w in str(u.label).split()) for u in everyone(fold)}
        return relabelled(fold, pronounce), Phones()
    aligned = librispeech.aligned_phones(data)
    unlabelled = [u.name for u in everyone(fold) if u.name not in aligned]
    if unlabelled:
        raise UserError(f"audio without labels: {len(unlabelled)} utterances have no phones, first {unlabelled[0]}")
    labels = {u.name: librispeech.phone_sequence(aligned[u.name]) for u in everyone(fold)}
    return relabelled(fold, labels), Phones(tuple(sorted({p for text in labels.values() for p in text.split()})))


def everyone(fold: Fold) -> list[Utterance]:
    return fold.train + fold.dev + fold.test


def relabelled(fold: Fold, labels: dict[str, str]) -> Fold:
    parts = ([replace(u, label=labels[u.name]) for u in part] for part in (fold.train, fold.dev, fold.test))
    return Fold(fold.name, *parts)
