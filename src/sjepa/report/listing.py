"""List runs: their progress, last loss, results, and the settings in which they differ.

This reads only the end of each log and does not import torch, so it is fast.
"""

import csv
import io
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sjepa.durations import SHORT, format_duration
from sjepa.errors import UserError
from sjepa.evaluate.results import RESULTS, find_results
from sjepa.fields import flatten_tables
from sjepa.files import require_folder
from sjepa.locks import is_locked
from sjepa.model.encoder_folder import EncoderFolder
from sjepa.phase_names import phase_name, phase_number
from sjepa.runs.events import last_event
from sjepa.runs.folder import RunFolder
from sjepa.runs.history import describe_stop

DEPTH = 3  # levels of folders to search for runs
RESULTS_SHOWN = 4  # of a run in the table
SETTINGS_SHOWN = 8
NOT_SET = "–"
Scores = dict[tuple[str, str], float]
"""Maps the name of a score and its data to the mean over seeds."""
NUMBERS = ("step", "phase", "loss")  # columns that are aligned to the right


@dataclass
class Listed:
    """One run of a list."""

    name: str
    path: str
    state: str
    """new, running, complete, stopped, interrupted, error, killed, or damaged."""
    step: int = 0
    planned: int = 0
    phase: int | None = None
    loss: float | None = None
    active: float | None = None
    """When the log was last written, in seconds since 1970."""
    data: str = ""
    results: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Only the settings that differ between the listed runs."""


def find_runs(folders: Sequence[Path]) -> list[tuple[str, RunFolder]]:
    """Find the runs in these folders, by name. For a run itself, include its copies from before it was changed."""
    found: dict[Path, tuple[str, RunFolder]] = {}
    for folder in folders:
        require_folder(folder)
        run = RunFolder(folder)
        if run.exists:
            earlier = [RunFolder(run.earlier(step)) for step in run.changed_steps]
            runs = [(each.name, each) for each in (*earlier, run)]
        else:
            runs = [(each.path.relative_to(folder).as_posix(), each) for each in search_folder(folder, DEPTH)]
        found |= {each.path.resolve(): (name, each) for name, each in runs}
    return list(found.values())


def search_folder(folder: Path, depth: int) -> list[RunFolder]:
    """Find the runs below a folder, sorted by name. Folders inside a run are not searched."""
    try:
        children = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    except PermissionError:
        return []
    found = []
    for run in map(RunFolder, children):
        if run.exists:
            found.append(run)
        elif depth > 1:
            found += search_folder(run.path, depth - 1)
    return found


def list_runs(runs: Sequence[tuple[str, RunFolder]]) -> list[Listed]:
    """Collect the facts about each run. A run that cannot be read is listed as damaged."""
    found: list[tuple[Listed, dict[str, Any], Scores]] = []
    for name, run in runs:
        try:
            found.append(
                (describe(name, run), {"data": run.data} | flatten_tables(run.settings), read_current_scores(run))
            )
        except (UserError, OSError) as error:
            found.append((Listed(name, str(run), f"damaged: {error}"), {}, {}))
    listed, settings = [each for each, _, _ in found], [values for _, values, _ in found]
    for each, named in zip(listed, add_data_names([scores for _, _, scores in found]), strict=True):
        each.results = named
    readable = [each for each in settings if each]
    keys = dict.fromkeys(key for each in readable for key in each)
    differing = [key for key in keys if len({json.dumps(each.get(key)) for each in readable}) > 1]
    for each, values in zip(listed, settings, strict=True):
        each.settings = {key: values.get(key) for key in differing} if values else {}
    return listed


def describe(name: str, run: RunFolder) -> Listed:
    line = last_event(run.log, "train") or {}
    step = max(run.checkpoint_steps, default=line.get("step", 0))
    return Listed(
        name,
        str(run),
        find_state(run),
        step,
        run.planned_steps,
        line.get("phase"),
        line.get("loss"),
        run.log.stat().st_mtime if run.log.is_file() else None,
        run.data,
    )


def find_state(run: RunFolder) -> str:
    """What a run is doing, or how it ended."""
    if is_locked(run.path):
        return "running"
    if run.is_complete:
        return "complete"
    history = run.history
    return describe_stop(history[-1]) if history else "stopped" if run.checkpoint_steps else "new"


def read_current_scores(run: RunFolder) -> Scores:
    """Results of the run's encoder as it is now. Results of its phases and of before it was lengthened are left out."""
    if not run.results.is_dir() or not any(run.results.rglob(RESULTS)):
        return {}
    from sjepa.evaluate.table import build_sections  # imported here because it needs numpy

    weights = EncoderFolder(run.encoder).recorded_fingerprint()
    results = [r for r in find_results([run.results]) if weights in ("", r["encoder"]["fingerprint"])]
    return {
        (f"{column}{row.detail}", section.key.data): value
        for section in build_sections(results, with_reported=False)
        for row in section.rows
        for column, value in row.values.items()
    }


def add_data_names(runs: Sequence[Scores]) -> list[dict[str, float]]:
    """Name the scores of each run. Names include the data if any of the runs has the score on other data."""
    known = Counter(name for name, _ in {key for scores in runs for key in scores})
    return [
        {f"{name}, {data}" if known[name] > 1 else name: value for (name, data), value in scores.items()}
        for scores in runs
    ]


def unusual_settings(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return, for each run, the settings whose values differ from those of more than half of the runs."""
    usual = {}
    for key in dict.fromkeys(key for each in listed for key in each.settings):
        (value, count), *_ = Counter(json.dumps(each.settings.get(key)) for each in listed).most_common(1)
        usual[key] = value if 2 * count > len(listed) else None
    return [{key: value for key, value in each.settings.items() if json.dumps(value) != usual[key]} for each in listed]


def as_tables(listed: Sequence[Listed]) -> list[Any]:
    """Tables for the terminal: the progress of the runs, the settings in which they differ, and their results."""
    progress = [
        (
            each.name,
            each.state,
            f"{each.step:,} / {each.planned:,}" if each.planned else f"{each.step:,}",
            NOT_SET if each.phase is None else str(each.phase),
            NOT_SET if each.loss is None else f"{each.loss:.3f}",
            NOT_SET if each.active is None else f"{format_duration(time.time() - each.active, SHORT)} ago",
        )
        for each in listed
    ]
    differences, results = [], []
    for each, settings in zip(listed, unusual_settings(listed), strict=True):
        changes = [f"{name} = {NOT_SET if value is None else value}" for name, value in settings.items()]
        scores = [f"{name} {value:.4g}" for name, value in each.results.items()]
        if changes:
            differences.append((each.name, first_lines(changes, SETTINGS_SHOWN)))
        if scores:
            results.append((each.name, first_lines(scores, RESULTS_SHOWN)))
    tables = [make_table(("run", "state", "step", "phase", "loss", "last activity"), progress)]
    tables += [make_table(("run", "settings that differ"), differences)] if differences else []
    tables += [make_table(("run", "results"), results)] if results else []
    return tables


def first_lines(lines: Sequence[str], shown: int) -> str:
    """Join lines. If there are more than `shown` of them, the rest is counted."""
    more = [f"and {len(lines) - shown} more"] if len(lines) > shown else []
    return "\n".join([*lines[:shown], *more])


def make_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def history_tables(run: RunFolder) -> list[Any]:
    """Tables for the terminal: every start of a run, and what each start changed."""
    history, running, settings = run.history, is_locked(run.path), flatten_tables(run.settings)
    starts, changes = [], []
    for entry in history:
        stop, changed = entry.get("stopped"), entry.get("changed")
        stop = stop if isinstance(stop, dict) else {}
        changed = [change for change in changed if isinstance(change, dict)] if isinstance(changed, list) else []
        how = describe_stop(entry, running and entry is history[-1])
        started = str(entry.get("started"))
        cells = (
            entry.get("step"),
            stop.get("step", NOT_SET),
            f"{how}: {stop['message']}" if stop.get("message") else how,
            f"{entry.get('host')}: {entry.get('world_size')} × {entry.get('device')}",
            f"{entry.get('sjepa')}, {entry.get('torch')}",
        )
        starts.append([started, *map(str, cells)])
        changed = [change for change in changed if not is_inherited(change, settings)]
        if changed:
            lines = [f"{change.get('name')}: {change.get('old')} -> {change.get('new')}" for change in changed]
            changes.append((started, "\n".join(lines)))
    tables = [make_table(("started", "from step", "to step", "ended", "on", "sjepa, torch"), starts)]
    return tables + ([make_table(("started", "changed"), changes)] if changes else [])


def is_inherited(change: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Return whether a change only says that an added phase has a setting of the phase before it."""
    phase, _, name = str(change.get("name")).partition(".")
    number = phase_number(phase)
    if number is None or name == "steps" or change.get("old") is not None:
        return False
    missing = object()
    return settings.get(f"{phase_name(number - 1)}.{name}", missing) == change.get("new")


def as_json(listed: Sequence[Listed]) -> str:
    return json.dumps([asdict(each) for each in listed], indent=1)


def as_csv(listed: Sequence[Listed]) -> str:
    """One row per run, one column per result and per setting that differs."""
    text = io.StringIO()
    rows = []
    for each in listed:
        row = asdict(each)
        scores, settings = row.pop("results"), row.pop("settings")
        rows.append(row | scores | {key: value for key, value in settings.items() if key != "data"})
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
