"""Run a command on untrusted input and say what is wrong with the outcome, if anything.

Each strategy in `ATTACKS` draws an `Attack`: it prepares files in a workspace and names the command to run. `attempt`
runs it. Wrong are an exit code other than 0, 1 or 2, a traceback, a failure without a message, a changed file outside
`--out`, and a command that takes too long.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from calls import Ended, sjepa
from hostile_commands import command_attacks
from hostile_damage import audio_attacks, file_attacks, list_attacks, weight_attacks
from hostile_inputs import FILES
from hostile_workspace import Attack, Workspace
from hypothesis import strategies as st

# CPU time decides, because it does not depend on how busy the machine is. The wall limit finds waits that use no CPU.
CPU_SECONDS = 120
WALL_SECONDS = 1800
IDLE = 0.5  # seconds of CPU time below which a process counts as waiting


def make_source(folder: Path) -> None:
    """Make a workspace to copy. Every command must succeed on its sound inputs, or damage would go unnoticed."""
    workspace = Workspace(folder)
    for arguments in {arguments for calls in FILES.values() for arguments in calls}:
        shutil.rmtree(workspace.scratch, ignore_errors=True)
        shutil.copytree(workspace.inputs, workspace.scratch)
        ended = sjepa(*(fill_in(argument, workspace.names) for argument in arguments))
        assert ended.status == 0 or "already holds another index" in ended.output, (arguments, ended.output)


class TooLongError(BaseException):
    """Not an Exception: nothing but the fuzzer may catch it."""


@contextmanager
def time_limit(cpu_seconds: float, wall_seconds: float) -> Iterator[None]:
    """Raise `TooLongError` after so much CPU time of this process, or after so much wall time almost without CPU."""
    used = time.process_time()

    def ring_cpu(*_: object) -> None:
        raise TooLongError(f"it took more than {cpu_seconds:g} s of CPU time")

    def ring_wall(*_: object) -> None:
        nonlocal used
        before, used = used, time.process_time()
        if used - before < IDLE:
            raise TooLongError(f"it waited for more than {wall_seconds:g} s by the clock")
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)  # it works, on a machine that is busy

    handlers = {signal.SIGPROF: ring_cpu, signal.SIGALRM: ring_wall}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in old.items():
            signal.signal(number, handler)


def attempt(attack: Attack, workspace: Workspace) -> str:
    """Run an attack; what is wrong with the outcome, or nothing."""
    workspace.fresh()
    fill = partial(fill_in, names=workspace.names)
    attack.prepare(workspace)
    arguments = [fill(argument) for argument in attack.arguments]
    writes = Path(fill(attack.writes))
    before, here = workspace.snapshot(writes), os.getcwd()
    os.chdir(workspace.scratch)
    try:
        with time_limit(CPU_SECONDS, WALL_SECONDS):
            ended = sjepa(*arguments)
    except TooLongError as late:
        return str(late)
    finally:
        os.chdir(here)
    return fault(ended) or touched(before, workspace.snapshot(writes))


def fill_in(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def fault(ended: Ended) -> str:
    if "Traceback" in ended.output or ended.status not in (0, 1, 2):
        return f"exit code {ended.status}: {ended.output[-3000:]}"
    if ended.status and not ended.output.strip():
        return f"exit code {ended.status} without a word"
    return ""


def touched(before: dict[str, Any], after: dict[str, Any]) -> str:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"touched outside of --out: {', '.join(changed[:5])}" if changed else ""


ATTACKS: dict[str, st.SearchStrategy[Attack]] = {
    "audio": audio_attacks(),
    "lists": list_attacks(),
    "files": file_attacks(),
    "weights": weight_attacks(),
    "commands": command_attacks(),
}
