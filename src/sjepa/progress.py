"""Progress bars and messages, on the main rank only."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
WIDE = 100  # columns of a terminal that has room for a bar and a note
APART = "  "  # separates the parts of a note
QUIET = 60.0  # seconds between progress lines if the output is not a terminal
hidden: ContextVar[bool] = ContextVar("hidden", default=False)  # whether bars are hidden
RECENT = 3600.0  # seconds: the time left is estimated from the steps in this time, so from two of them at the least


def make_columns(width: int) -> list[Any]:
    """Return the columns of a progress bar for a terminal of this width."""
    from rich import progress
    from rich.table import Column

    class NoteColumn(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Any:
            return Note(task.fields["note"])

    whole = Column(no_wrap=True)
    return [
        # A long description wraps, so that no number is cut off.
        progress.TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        *([progress.BarColumn(12, table_column=whole)] if width >= WIDE else []),
        progress.MofNCompleteColumn(table_column=whole),
        progress.TimeElapsedColumn(table_column=whole),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(table_column=whole),
        NoteColumn(Column(ratio=1, no_wrap=True)),
    ]


@dataclass(frozen=True)
class Note:
    """Text after a progress bar, shortened to the available width."""

    text: str

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        yield Text(fit_note(self.text, options.max_width))


def fit_note(note: str, room: int) -> str:
    """Return the first parts of a note, as many as fit."""
    from rich.cells import cell_len

    parts = note.split(APART)
    while parts and cell_len(APART.join(parts)) > room:
        parts.pop()
    return APART.join(parts)


def is_main() -> bool:
    """Return whether this is the main rank. Before torch is loaded, no ranks have joined, so do not load it to ask."""
    if "torch" not in sys.modules:
        return True
    from sjepa import distributed

    return distributed.is_main()


class Bar:
    """One progress bar with a note after it."""

    def __init__(self, progress: Any, task: Any):
        self.progress, self.task = progress, task
        console = None if progress is None else progress.console
        self.logging = console is not None and not (console.is_terminal or console.is_jupyter)
        if self.logging:
            self.log()  # at once, because the next line may take long

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Advance the bar and replace its note. Its parts are two spaces apart. The last ones are dropped first."""
        if self.progress is not None:
            self.progress.update(self.task, advance=steps, **({} if note is None else {"note": note}))
            if self.logging and time.monotonic() - self.written > QUIET:
                self.log()

    def skip(self, steps: int) -> None:
        """Advance over work of an earlier call, which tells nothing about the time left."""
        self.advance(steps)
        self.restart_estimate()

    def log(self) -> None:
        """Print the state as a line, for output that is not a terminal."""
        self.written = time.monotonic()
        self.progress.console.print(self.progress.get_renderable())

    def restart_estimate(self) -> None:
        """Estimate the time left from the steps after this call only. The total and the time so far stay."""
        if self.progress is not None:
            total = self.progress.tasks[self.task].total
            self.progress.update(self.task, total=total + 1)  # rich forgets the earlier steps if the total changes
            self.progress.update(self.task, total=total)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.progress is not None:
            self.progress.console.print(line, highlight=False, markup=False)
        elif is_main():
            print(line, flush=True)


@contextmanager
def hide_bars() -> Iterator[None]:
    """Show no progress bars while the block runs."""
    before = hidden.set(True)
    try:
        yield
    finally:
        hidden.reset(before)


@contextmanager
def bar(description: str, total: int | None, done: int = 0) -> Iterator[Bar]:
    """Show a progress bar while the block runs."""
    if hidden.get() or not is_main():
        yield Bar(None, None)
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    columns = make_columns(console.width)
    with Progress(*columns, console=console, expand=True, speed_estimate_period=RECENT) as progress:
        yield Bar(progress, progress.add_task(description, total=total, completed=done, note=""))


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items and show a progress bar."""
    with bar(description, total if total is not None else len(items)) as b:  # type: ignore[arg-type]
        for item in items:
            yield item
            b.advance()


def say(line: str, aside: bool = False) -> None:
    """Print a line on the main rank. With `aside`, print it to stderr, apart from results."""
    if is_main():
        print(line, file=sys.stderr if aside else sys.stdout, flush=True)
