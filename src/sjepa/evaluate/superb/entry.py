"""Task entries: everything that distinguishes one task from another."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeVar

from sjepa.errors import UserError
from sjepa.evaluate.metric import Metric, SectionKind
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Fold
from sjepa.evaluate.superb.search import Search
from sjepa.evaluate.superb.submission import Submission
from sjepa.evaluate.superb.task import Recipe, Task
from sjepa.evaluate.superb.user_corpus import corpus_label
from sjepa.files import require_folder

T = TypeVar("T", bound=Task)
DEFAULT_SUBSET = "dev-clean"  # of LibriSpeech


class LabelColumns(Enum):
    """What the user's columns of `--label` hold."""

    NONE = auto()
    """The task has its own labels."""
    CLASSES = auto()
    """The class of an utterance. Several columns must all be right."""
    TAGS = auto()
    """One tag per word, in one column."""


@dataclass(frozen=True)
class CorpusLocation:
    """Rules to find a task's corpus in a folder of several corpora."""

    signs: tuple[str, ...]
    """Files or folders, at least one of which the corpus contains."""
    folders: tuple[str, ...] = ()
    """Possible names of its folder. The given folder itself may also be the corpus."""

    def find(self, data: Path) -> Path | None:
        for folder in (data, *(data / name for name in self.folders)):
            if any((folder / sign).exists() for sign in self.signs):
                return folder
        return None


@dataclass(frozen=True)
class Request:
    """Options to build a task: its corpus, the protocol, and files that some tasks need."""

    data: Path
    recipe: Recipe
    lite: bool = False
    lexicons: tuple[Path, ...] = ()
    subset: str = DEFAULT_SUBSET
    """Subset of LibriSpeech, for the lite protocol."""
    columns: tuple[str, ...] = ()
    """Columns of a user's corpus with the labels of `classify` and `tag`."""


@dataclass(frozen=True)
class Entry:
    """Definition of a task. Each file in `tasks` has one as `ENTRY`. A program may define others."""

    name: str
    title: str
    section: SectionKind
    """Table section of its full results."""
    recipe: Recipe
    lite_steps: int
    metrics: tuple[Metric, ...]
    build: "Callable[[Entry, Request], Task]"
    """Reads the corpus and makes the task: folds, head, loss and predictions."""
    selects: str = ""
    """The metric for selection on dev. By default, the first."""
    search: type[Search] = LearningRateSearch
    """The class that runs the task. By default, it trains heads. A task without training has its own."""
    corpus: CorpusLocation | None = None
    """Rules for `superb all` to find the corpus. `superb all` skips tasks without it."""
    submission: Submission | None = None
    """The prediction files that the SUPERB leaderboard expects."""
    language_model: bool = False
    """Whether a language model can decode the test part."""
    reads_user_corpora: bool = False
    """Whether it accepts any labelled corpus, including a single file."""
    label_columns: LabelColumns = LabelColumns.NONE
    """The labels that the user names with `--label`."""

    def rename_for_corpus(self, data: Path, columns: Sequence[str] = ()) -> "Entry":
        """Return the task for a user's corpus and columns of labels, with its own name and no published results."""
        labels = "+".join(re.sub(r"[^\w.]+", "_", column) for column in columns)  # a part of a folder's name
        name = "-".join(filter(None, (self.name, corpus_label(data), labels)))
        section, recipe, steps = SectionKind.OTHER, self.recipe, self.lite_steps
        return Entry(name, self.title, section, recipe, steps, self.metrics, self.build, self.selects, self.search)

    def request(
        self,
        data: Path,
        *,
        lite: bool = False,
        steps: int | None = None,
        lexicons: Sequence[Path] = (),
        subset: str = DEFAULT_SUBSET,
        columns: tuple[str, ...] = (),
    ) -> Request:
        """Make a request with the full or lite protocol. `steps` applies to the lite protocol only."""
        if not (self.reads_user_corpora and data.is_file()):
            require_folder(data)
        if steps is not None and not lite:
            raise UserError("--steps is for --lite; the full protocol has its own number of steps")
        if subset != DEFAULT_SUBSET and not lite:
            raise UserError("--subset is for --lite; the full protocol has its own subsets of LibriSpeech")
        recipe = self.recipe.lite(steps or self.lite_steps) if lite else self.recipe
        return Request(data, recipe, lite, tuple(lexicons), subset, columns)

    def task(self, kind: type[T], request: Request, folds: list[Fold], **more: Any) -> T:
        """Make a task of the given class from this entry."""
        submission = None if request.lite else self.submission
        return kind(self.name, request.recipe, folds, self.metrics, self.selects, self.section, submission, **more)
