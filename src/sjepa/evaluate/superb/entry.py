"""One entry per task: everything that tells a task from the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sjepa.errors import UserError
from sjepa.evaluate.metric import Metric, SectionKind
from sjepa.evaluate.superb.own import OwnData, corpus_label
from sjepa.evaluate.superb.records import Fold
from sjepa.evaluate.superb.submission import Submission
from sjepa.evaluate.superb.task import Recipe, Task

T = TypeVar("T", bound=Task)
DEV_CLEAN = "dev-clean"


@dataclass(frozen=True)
class Corpus:
    """How a task's corpus is recognised in a folder that holds several."""

    signs: tuple[str, ...]
    """Files or folders, any of which lies in it."""
    folders: tuple[str, ...] = ()
    """Names that its folder may have; it may also be the folder of all corpora itself."""

    def find(self, data: Path) -> Path | None:
        for folder in (data, *(data / name for name in self.folders)):
            if any((folder / sign).exists() for sign in self.signs):
                return folder
        return None


@dataclass(frozen=True)
class Request:
    """What is asked of a task: its corpus, the protocol, and the files that some tasks need."""

    data: Path
    recipe: Recipe
    lite: bool = False
    lexicons: tuple[Path, ...] = ()
    subset: str = DEV_CLEAN
    """Of LibriSpeech, for the lite protocol."""
    own: OwnData = field(default_factory=OwnData)
    """How a corpus of the user's own is read."""


@dataclass(frozen=True)
class Entry:
    """A task as it is listed. `ENTRY` of each file in `tasks` is one; a program may make others from any data."""

    name: str
    title: str
    section: SectionKind
    """Where its full results stand in a table."""
    recipe: Recipe
    lite_steps: int
    metrics: tuple[Metric, ...]
    build: "Callable[[Entry, Request], Task]"
    """Read the corpus and make the task: its folds, head, loss and predictions."""
    selects: str = ""
    """The metric that dev selects by; the first unless another is named."""
    corpus: Corpus | None = None
    """How `superb all` finds the corpus; a task without it is not among all."""
    submission: Submission | None = None
    """The file of its test predictions that SUPERB's board expects."""
    language_model: bool = False
    """Whether a language model can decode its test part."""
    own: bool = False
    """Whether it takes any labelled corpus, which may also be a single file."""

    def for_corpus(self, data: Path) -> "Entry":
        """The same task on a corpus of the user's own, under a name of its own and never beside reported results."""
        name = f"{self.name}-{corpus_label(data)}"
        return Entry(
            name, self.title, SectionKind.OTHER, self.recipe, self.lite_steps, self.metrics, self.build, self.selects
        )

    def request(
        self,
        data: Path,
        *,
        lite: bool = False,
        steps: int | None = None,
        lexicons: Sequence[Path] = (),
        subset: str = DEV_CLEAN,
        own: OwnData | None = None,
    ) -> Request:
        """Settle the protocol; `steps` changes the length of the lite protocol only."""
        if not data.is_dir() and not (self.own and data.is_file()):
            raise UserError(f"there is no folder {data}")
        if steps is not None and not lite:
            raise UserError("--steps is for --lite; the full protocol has its own number of steps")
        if subset != DEV_CLEAN and not lite:
            raise UserError("--subset is for --lite; the full protocol has its own subsets of LibriSpeech")
        if steps is not None and steps < 1:
            raise UserError(f"--steps {steps}: at least one step is needed")
        recipe = self.recipe.lite(steps or self.lite_steps) if lite else self.recipe
        return Request(data, recipe, lite, tuple(lexicons), subset, own or OwnData())

    def task(self, kind: type[T], request: Request, folds: list[Fold], **more: Any) -> T:
        """A task of a kind, with all that the entry states."""
        submission = None if request.lite else self.submission
        return kind(self.name, request.recipe, folds, self.metrics, self.selects, self.section, submission, **more)
