"""Run a sweep: train and evaluate its runs, and continue after a stop.

Each command runs in its own process, so that no run sees the memory of another. Several processes may work on one
sweep, such as the tasks of a Slurm array. One of them trains or evaluates a run, and the others that need it wait.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sjepa.config import differences
from sjepa.errors import UserError
from sjepa.files import LOCK, write_whole
from sjepa.locks import hold_lock, is_held, is_locked
from sjepa.model.encoder_folder import EncoderFolder
from sjepa.runs import checkpoint
from sjepa.runs.folder import RunFolder, page_name
from sjepa.settings_file import to_toml
from sjepa.stopping import INTERRUPTED, SIGNALS
from sjepa.sweep.audio import check_audio
from sjepa.sweep.file import EvaluationCommand, Sweep, SweepEntry
from sjepa.train.branch import boundary_checkpoint

PATIENCE = 10.0  # seconds between checks of a run that another process trains
FAILURES = 2  # of our commands, after which a run counts as failed although it has made progress


class SweepStoppedError(Exception):
    """A signal stopped a command, and with it the sweep."""


class FailedError(Exception):
    """A command failed and printed the reason."""


def launch(arguments: Sequence[str], program: Sequence[str] = ()) -> int:
    """Run a command of sjepa in its own process and return its exit code. Signals are passed on to it.

    A command saves its state before it stops, so we wait for it.
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
    if asked or code == INTERRUPTED:
        raise SweepStoppedError
    return code


def is_trained(item: SweepEntry) -> bool:
    """Whether a run is complete and has the settings of the sweep."""
    assert item.config is not None
    run = RunFolder(item.folder)
    return run.exists and run.is_complete and not differences(run.config(), item.config)


def is_ready(sweep: Sweep, item: SweepEntry) -> bool:
    """Whether a run is complete, and has the settings and the audio of the sweep."""
    try:
        check_audio(sweep, item)
        return is_trained(item)
    except UserError:  # the run is damaged or has other audio; reported when the sweep comes to it
        return False


def has_finished(item: SweepEntry, phases: int) -> bool:
    """Whether a run has finished its first `phases` phases."""
    run = RunFolder(item.folder)
    return run.exists and checkpoint.state_file(boundary_checkpoint(run, run.config(), phases)).is_file()


def wait_for_lock() -> None:
    time.sleep(PATIENCE)


def settings_file(sweep: Sweep, item: SweepEntry) -> Path:
    return sweep.out / "settings" / f"{item.name}.toml"


def train(sweep: Sweep, item: SweepEntry, phases: int = 0) -> None:
    """Train a run, or only its first phases. Phases that it shares with another run are trained there first."""
    assert item.config is not None
    done: Callable[[], bool] = (lambda: has_finished(item, phases)) if phases else (lambda: is_trained(item))
    run, waiting, failures = RunFolder(item.folder), False, 0
    check_audio(sweep, item)
    while not done():
        if is_locked(item.folder):
            if not waiting:
                print(f"{item.name}: another process is training it; waiting", flush=True)
            waiting = True
            wait_for_lock()
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
        if code and not is_locked(item.folder):
            failures += 1
            # If another process was faster, the run has made progress although our command failed. Our own command may
            # also make progress before it fails, for example at damaged audio, so only the first failure is excused.
            moved = before != (run.exists, run.step if run.exists else 0)
            if not moved or failures == FAILURES:
                raise FailedError
        if not code and not done():
            raise SweepStoppedError  # several ranks end with 0 when a signal stops them


def is_measured(evaluation: EvaluationCommand, item: SweepEntry) -> bool:
    """Whether a result exists and is not older than the encoder that it measures."""
    encoder = Path(item.encoder) if item.config is None else RunFolder(item.folder).encoder
    result, weights = evaluation.result(item), EncoderFolder(encoder).weights
    if not result.is_file():
        return False
    return not weights.is_file() or result.stat().st_mtime >= weights.stat().st_mtime


def measure(sweep: Sweep, item: SweepEntry) -> None:
    """Run the evaluations of an item that have no result yet. One that fails does not stop the others."""
    lock = item.folder.with_name(f".{item.name}-results{LOCK}")
    lock.parent.mkdir(parents=True, exist_ok=True)
    if is_held(lock):
        print(f"{item.name}: another process is evaluating it; waiting", flush=True)
    with hold_lock(lock, "", clean=False, wait=True):
        run_evaluations(sweep, item)


def run_evaluations(sweep: Sweep, item: SweepEntry) -> None:
    failed = False
    for evaluation in sweep.evaluations:
        if not evaluation.is_for(item) or is_measured(evaluation, item):
            continue
        if evaluation.needs and not Path(evaluation.needs).exists():
            print(f"{item.name}: skipping {evaluation.name}, because {evaluation.needs} does not exist", flush=True)
            continue
        print(f"{item.name}: {evaluation.name}", flush=True)
        if launch(evaluation.arguments(item)):
            failed = True
        elif not evaluation.result(item).is_file():
            print(
                f"{sweep.file}: evaluate.{evaluation.name}.makes: the command did not write "
                f"{evaluation.result(item)}; give the path of the file that it writes",
                flush=True,
            )
            failed = True
    if failed:
        raise FailedError


def run_item(sweep: Sweep, item: SweepEntry) -> None:
    if item.config is not None:
        train(sweep, item)
    elif item.parent is not None:
        train(sweep, item.parent, item.shared)
    measure(sweep, item)


def run_all(sweep: Sweep, items: Sequence[SweepEntry]) -> None:
    """Train and evaluate the items in order. If one fails, continue with those that do not need it."""
    failed: dict[str, SweepEntry] = {}
    for item in items:
        try:
            if item.parent is not None and item.parent.name in failed and not has_finished(item.parent, item.shared):
                print(f"{item.name}: left out, because {item.parent.name} failed", flush=True)
                failed[item.name] = item
                continue
            run_item(sweep, item)
        except (FailedError, UserError) as error:  # a FailedError has no message: its command has printed one
            reason = f": {error}" if str(error) else ""
            print(f"{item.name}: failed; continuing without it{reason}", flush=True)
            failed[item.name] = item
    if failed:
        raise UserError(f"{', '.join(failed)} failed (see above); run the same command to try again")
    if all(is_ready(sweep, run) for run in sweep.runs):
        write_page(sweep)


def write_page(sweep: Sweep) -> None:
    """Write one page that compares all runs, with the results of the other encoders."""
    runs = [str(run.folder) for run in sweep.runs]
    others = [str(item.folder) for item in sweep.items if item.config is None and item.folder.is_dir()]
    page = [
        "report",
        *runs,
        "--out",
        str(sweep.out / page_name(len(runs))),
        "--title",
        f"The runs of {sweep.file.name}",
    ]
    if launch([*page, *(["--results", *others] if others else [])]):
        raise UserError(f"the page could not be written (see above); all runs are in {sweep.out}")
