"""The history of a run: every start and stop, in its run.json. Changes of settings or audio are atomic.

A change affects two files, config.toml and run.json. It is first written to run.json as `pending`, and every reader
uses it from then on. Then it is carried out. A kill leaves either the old run or the new one.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sjepa.errors import UserError
from sjepa.fields import shorten
from sjepa.files import write_whole
from sjepa.runs.folder import HISTORY, PENDING, RunFolder, timestamp
from sjepa.stopping import StoppedError

LONGEST = 200  # number of starts to keep
COMMAND = 2000  # characters of a command to keep
Entry = dict[str, Any]
"""A start of a run: time, host, versions, step and changes, and later how it stopped."""


def record_start(
    run: RunFolder,
    step: int,
    machine: dict[str, Any],
    changed: Sequence[tuple[str, Any, Any]] = (),
    settings: str | None = None,
    facts: dict[str, Any] | None = None,
) -> None:
    """Add a start to the history, and change the run at the same time.

    `machine` describes the machine. `changed` lists fields with their old and new values. `settings` is a new
    config.toml, and `facts` are new fields of run.json. Both take effect with this start, or not at all.
    """
    entry: Entry = {"started": timestamp(), "step": step, "host": platform.node(), "pid": os.getpid(), **machine}
    entry |= {"python": platform.python_version(), "command": " ".join(sys.argv)[:COMMAND]}
    if changed:
        entry["changed"] = [
            {"name": name, "old": to_json_value(old), "new": to_json_value(new)} for name, old, new in changed
        ]
    record = run.record
    record[HISTORY] = drop_old_starts([*run.history, entry])
    if settings is not None or facts:
        record[PENDING] = {"config": settings or run.settings_text, "facts": facts or {}}
    write_record(run, record)
    finish_change(run)


def finish_change(run: RunFolder) -> None:
    """Carry out the pending change, if there is one."""
    pending = run.pending
    if pending is not None:
        write_whole(run.config_file, pending["config"])
        record = run.record
        del record[PENDING]
        write_record(run, record | pending["facts"])


def write_record(run: RunFolder, record: dict[str, Any]) -> None:
    write_whole(run.facts_file, json.dumps(record, indent=1) + "\n")


def drop_old_starts(history: list[Entry]) -> list[Entry]:
    """Return the newest starts. Starts without changes are dropped first."""
    excess = len(history) - LONGEST
    dropped = {id(entry) for entry in sorted(history[:-1], key=lambda entry: "changed" in entry)[: max(0, excess)]}
    return [entry for entry in history if id(entry) not in dropped]


def to_json_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def record_stop(
    run: RunFolder, step: Callable[[], int], planned: int, signal_name: Callable[[], str]
) -> Iterator[None]:
    """Record at the end of the block how it ended: the step, and the reason.

    The reason is complete, stopped (on request, with the name of a signal), interrupted or error.
    """
    try:
        yield
    except KeyboardInterrupt:
        write_stop(run, step(), "interrupted")
        raise
    except StoppedError:
        write_stop(run, step(), "stopped", signal_name())
        raise
    except BaseException as error:
        write_stop(run, step(), "error", describe_error(error))
        raise
    else:
        if step() >= planned:
            write_stop(run, step(), "complete")
        else:
            write_stop(run, step(), "stopped", signal_name())


def write_stop(run: RunFolder, step: int, reason: str, message: str = "") -> None:
    """Add the stop to the newest start. An error here, such as a full disk, must not hide why the run ended."""
    with suppress(OSError, UserError):
        record, history = run.record, run.history
        if history:
            stop = {"time": timestamp(), "step": step, "reason": reason} | ({"message": message} if message else {})
            history[-1]["stopped"] = stop
            write_record(run, record | {HISTORY: history})


def describe_error(error: BaseException) -> str:
    words = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {shorten(str(error))}"
    return words[:300]


def describe_stop(entry: Entry, running: bool = False) -> str:
    """Return in one word how a start ended. Without a record of its end it was killed, unless it is still `running`."""
    stop = entry.get("stopped")
    if not isinstance(stop, dict):
        return "running" if running else "killed"
    return str(stop.get("reason", "stopped"))
