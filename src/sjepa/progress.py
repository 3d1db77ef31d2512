"""Progress on everything long, on the main rank only."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sjepa import distributed

T = TypeVar("T")


def columns() -> list[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    return [
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        # The note gets what room is left, and is cut where there is too little.
        TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
    ]


class Bar:
    """One progress bar with a note behind it."""

    def __init__(self, progress: Any, task: Any):
        self.progress, self.task = progress, task

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        if self.progress is not None:
            self.progress.update(self.task, advance=steps, **({} if note is None else {"note": note}))

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.progress is not None:
            self.progress.console.print(line, highlight=False, markup=False)
        elif distributed.is_main():
            print(line, flush=True)


@contextmanager
def bar(description: str, total: int | None, done: int = 0, show: bool = True) -> Iterator[Bar]:
    if not (show and distributed.is_main()):
        yield Bar(None, None)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*columns(), console=Console(stderr=True), expand=True) as progress:
        yield Bar(progress, progress.add_task(description, total=total, completed=done, note=""))


def track(items: Iterable[T], description: str, total: int | None = None, show: bool = True) -> Iterator[T]:
    with bar(description, total if total is not None else len(items), show=show) as b:  # type: ignore[arg-type]
        for item in items:
            yield item
            b.advance()


def say(line: str) -> None:
    """Print a line once, whatever the number of ranks."""
    if distributed.is_main():
        print(line, flush=True)
