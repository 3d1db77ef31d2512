"""Doing a sweep: train, measure, and go on where it stopped.

Each command runs in a process of its own, so that no run sees what another left in memory. Several processes may work
on one sweep, as the tasks of a Slurm array do: a run is trained by whoever holds its lock, and others wait for it.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sjepa.config import differences, to_toml
from sjepa.errors import UserError
from sjepa.files import write_whole
from sjepa.locks import is_locked
from sjepa.runs import checkpoint
from sjepa.runs.folder import RunFolder
from sjepa.stopping import SIGNALS
from sjepa.sweep.file import Evaluation, Item, Sweep
from sjepa.train.branch import boundary

PATIENCE = 10.0  # seconds between looks at a run that another process trains


class StoppedError(Exception):
    """A signal has ended a command, and with it the sweep."""


class FailedError(Exception):
    """A command has failed; it has said why."""


def launch(arguments: Sequence[str], program: Sequence[str] = ()) -> int:
    """Run a command of sjepa in a process of its own, and pass signals on to it; its exit code.

    A command that is asked to stop saves first, so it is waited for.
    """
    process = subprocess.Popen([*(program or (sys.executable, "-m", "sjepa")), *arguments])
    asked = []

    def pass_on(number: int, frame: object) -> None:
        asked.append(number)
        process.send_signal(number)

    handled = SIGNALS if threading.current_thread() is threading.main_thread() else []
    before = [(number, signal.signal(number, pass_on)) for number in handled]
    try:
        code = process.wait()
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if asked or code == 130:
        raise StoppedError
    return code


def is_trained(item: Item) -> bool:
    """Whether a run is complete, with the settings of the sweep."""
    assert item.config is not None
    run = RunFolder(item.folder)
    return run.exists and run.is_complete and not differences(run.config(), item.config)


def has_ended(item: Item, phases: int) -> bool:
    """Whether a run has ended its first phases."""
    run = RunFolder(item.folder)
    return run.exists and checkpoint.state_file(boundary(run, run.config(), phases)).is_file()


def pause() -> None:
    time.sleep(PATIENCE)


def settings_file(sweep: Sweep, item: Item) -> Path:
    return sweep.out / "settings" / f"{item.name}.toml"


def train(sweep: Sweep, item: Item, phases: int = 0) -> None:
    """Train a run, or only its first phases; what it takes from another run is trained first."""
    assert item.config is not None
    done: Callable[[], bool] = (lambda: has_ended(item, phases)) if phases else (lambda: is_trained(item))
    run, waiting = RunFolder(item.folder), False
    while not done():
        if is_locked(item.folder):
            if not waiting:
                print(f"{item.name}: another process trains it; waiting", flush=True)
            waiting = True
            pause()
            continue
        arguments = ["pretrain", "--preset", str(settings_file(sweep, item)), "--data", sweep.data]
        arguments += ["--out", str(item.folder), *(["--stop-after-phase", str(phases)] if phases else [])]
        if item.parent is not None and not run.exists:
            train(sweep, item.parent, item.shared)
            arguments += ["--branch-from", str(item.parent.folder)]
        settings_file(sweep, item).parent.mkdir(parents=True, exist_ok=True)
        write_whole(settings_file(sweep, item), to_toml(item.config))
        print(f"{item.name}: {f'training to the end of phase {phases}' if phases else 'training'}", flush=True)
        before = (run.exists, run.step if run.exists else 0)
        code = launch(arguments, sweep.launch)
        # Another process may have been quicker: then there is progress that is not ours.
        moved = before != (run.exists, run.step if run.exists else 0)
        if code and not (moved or is_locked(item.folder)):
            raise FailedError
        if not code and not done():
            raise StoppedError  # several ranks end with 0 when a signal stops them


def is_measured(evaluation: Evaluation, item: Item) -> bool:
    """Whether a result is there and no older than the encoder that it measures."""
    result, weights = evaluation.result(item), Path(item.encoder) / "model.safetensors"
    if item.config is not None:
        weights = RunFolder(item.folder).encoder / weights.name
    if not result.is_file():
        return False
    return not weights.is_file() or result.stat().st_mtime >= weights.stat().st_mtime


def measure(sweep: Sweep, item: Item) -> None:
    """Run the evaluations of a run or an encoder that were not run yet; one that fails does not hold up the others."""
    failed = False
    for evaluation in sweep.evaluations:
        if not evaluation.is_for(item) or is_measured(evaluation, item):
            continue
        if evaluation.needs and not Path(evaluation.needs).exists():
            print(f"{item.name}: no {evaluation.name}, because there is no {evaluation.needs}", flush=True)
            continue
        print(f"{item.name}: {evaluation.name}", flush=True)
        if launch(evaluation.arguments(item)):
            failed = True
        elif not evaluation.result(item).is_file():
            print(
                f"{sweep.file}: evaluate.{evaluation.name}.makes: the command has ended, and there is no "
                f"{evaluation.result(item)}; give the path of the file that it writes",
                flush=True,
            )
            failed = True
    if failed:
        raise FailedError


def do_item(sweep: Sweep, item: Item) -> None:
    if item.config is not None:
        train(sweep, item)
    elif item.parent is not None:
        train(sweep, item.parent, item.shared)
    measure(sweep, item)


def do_all(sweep: Sweep, items: Sequence[Item]) -> None:
    """Train and measure one after another. What fails is left, and what does not need it goes on."""
    failed: dict[str, Item] = {}
    for item in items:
        if item.parent is not None and item.parent.name in failed and not has_ended(item.parent, item.shared):
            print(f"{item.name}: left out, because {item.parent.name} failed", flush=True)
            failed[item.name] = item
            continue
        try:
            do_item(sweep, item)
        except FailedError:
            print(f"{item.name}: failed; going on without it", flush=True)
            failed[item.name] = item
    if failed:
        raise UserError(f"{', '.join(failed)} failed, as said above; the same command tries again")
    if all(is_trained(run) for run in sweep.runs):
        write_page(sweep)


def write_page(sweep: Sweep) -> None:
    """One page of all runs next to each other, with the results of the other encoders."""
    runs = [str(run.folder) for run in sweep.runs]
    others = [str(item.folder) for item in sweep.items if item.config is None and item.folder.is_dir()]
    name = "comparison.html" if len(runs) > 1 else "report.html"
    page = ["report", *runs, "--out", str(sweep.out / name), "--title", f"The runs of {sweep.file.name}"]
    if launch([*page, *(["--results", *others] if others else [])]):
        raise UserError(f"there is no page, as said above; all runs are in {sweep.out}")
