"""The history of a run: every start and stop, in its run.json. Changes of settings or audio are made here, whole.

A change touches two files, config.toml and run.json. It is first written to run.json as `pending`, which every reader
takes for the run from then on, and then carried out. A kill leaves the old run or the new one.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sjepa.errors import UserError
from sjepa.fields import brief
from sjepa.files import write_whole
from sjepa.runs.folder import HISTORY, PENDING, RunFolder

LONGEST = 200  # starts that are kept
COMMAND = 2000  # characters of a command that are kept
Entry = dict[str, Any]
"""A start of a run: when, where, with what, from which step, what changed; and how it stopped, once it has."""


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def record_start(
    run: RunFolder,
    step: int,
    machine: dict[str, Any],
    changed: Sequence[tuple[str, Any, Any]] = (),
    settings: str | None = None,
    facts: dict[str, Any] | None = None,
) -> None:
    """Add a start to the history, and with it change the run.

    `machine` says what it runs on, `changed` has fields with their old and new values. `settings` is a new config.toml
    and `facts` are new fields of run.json; both take effect with this start, or not at all.
    """
    entry: Entry = {"started": now(), "step": step, "host": platform.node(), "pid": os.getpid(), **machine}
    entry |= {"python": platform.python_version(), "command": " ".join(sys.argv)[:COMMAND]}
    if changed:
        entry["changed"] = [{"name": name, "old": plain(old), "new": plain(new)} for name, old, new in changed]
    record = run.record
    record[HISTORY] = shorten([*run.history, entry])
    if settings is not None or facts:
        record[PENDING] = {"config": settings or run.settings_text, "facts": facts or {}}
    write_record(run, record)
    finish_change(run)


def finish_change(run: RunFolder) -> None:
    """Carry out the change that is pending, if one is."""
    pending = run.pending
    if pending is not None:
        write_whole(run.config_file, pending["config"])
        record = run.record
        del record[PENDING]
        write_record(run, record | pending["facts"])


def write_record(run: RunFolder, record: dict[str, Any]) -> None:
    write_whole(run.facts_file, json.dumps(record, indent=1) + "\n")


def shorten(history: list[Entry]) -> list[Entry]:
    """The newest starts; those that changed nothing go first."""
    excess = len(history) - LONGEST
    dropped = {id(entry) for entry in sorted(history[:-1], key=lambda entry: "changed" in entry)[: max(0, excess)]}
    return [entry for entry in history if id(entry) not in dropped]


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def record_stop(run: RunFolder, state: Any, planned: int, signal_name: Callable[[], str]) -> Iterator[None]:
    """Write at the end of the block how it ended: at which step of `state`, and why.

    The reason is complete, signal, stopped (as ordered, before the end), interrupted or error.
    """
    try:
        yield
    except KeyboardInterrupt:
        write_stop(run, state.step, "interrupted")
        raise
    except BaseException as error:
        write_stop(run, state.step, "error", brief_error(error))
        raise
    else:
        asked = signal_name()
        if state.step >= planned:
            write_stop(run, state.step, "complete")
        else:
            write_stop(run, state.step, "signal" if asked else "stopped", asked)


def write_stop(run: RunFolder, step: int, reason: str, message: str = "") -> None:
    """Complete the newest start. A disk that is full, for one, must not hide why the run ended."""
    with suppress(OSError, UserError):
        record, history = run.record, run.history
        if history:
            stop = {"time": now(), "step": step, "reason": reason} | ({"message": message} if message else {})
            history[-1]["stopped"] = stop
            write_record(run, record | {HISTORY: history})


def brief_error(error: BaseException) -> str:
    words = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {brief(str(error))}"
    return words[:300]


def describe_stop(entry: Entry, running: bool = False) -> str:
    """How a start ended, in a word; without a note of its end it was killed, unless it is the one still `running`."""
    stop = entry.get("stopped")
    if not isinstance(stop, dict):
        return "running" if running else "killed"
    return str(stop.get("reason", "stopped"))
