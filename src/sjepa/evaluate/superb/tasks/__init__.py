"""The tasks, one file each. A file has the name of its task and defines `ENTRY`."""

import importlib
from collections.abc import Sequence
from pathlib import Path

from sjepa.evaluate.superb import TASK_NAMES
from sjepa.evaluate.superb.entry import DEFAULT_SUBSET, Entry
from sjepa.evaluate.superb.task import Task


def find_entry(name: str) -> Entry:
    entry: Entry = importlib.import_module(f"{__name__}.{name}").ENTRY
    return entry


def all_entries() -> list[Entry]:
    return [find_entry(name) for name in TASK_NAMES]


def make_task(
    name: str,
    data: Path,
    *,
    lite: bool = False,
    steps: int | None = None,
    lexicons: Sequence[Path] = (),
    subset: str = DEFAULT_SUBSET,
    columns: tuple[str, ...] = (),
) -> Task:
    """Read a task's corpus and make the task. `steps` and `subset` apply to the lite protocol only."""
    entry = find_entry(name)
    request = entry.request(data, lite=lite, steps=steps, lexicons=lexicons, subset=subset, columns=columns)
    return entry.build(entry, request)
