"""Sweeps: one file describes runs that share their first phases, in any order and in several processes."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import micro_config
from small_runs import lines

from sjepa import UserError, __version__
from sjepa.cli import dispatch
from sjepa.commands import COMMANDS
from sjepa.config import Config
from sjepa.runs.audio import replace_audio
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import to_toml
from sjepa.sweep import work
from sjepa.sweep.file import Sweep, nest, read_sweep

STUDY = """
[sweep]
preset = "base.toml"
data = "$SWEEP_AUDIO"
out = "{out}"
seeds = [0]

[sweep.settings]
phase2.steps = 3

[runs.soft]
seeds = [0, 1]

[runs.hard]
phase1.hard = true
"phase2.hard" = true

[runs.frozen]
phase2.targets = "same"

[runs.hard-long]
phase1.hard = true
phase2 = {{ hard = true, steps = 5 }}

[runs.as-it-is]
preset = "base.toml"

[encoders."soft.phase1"]
run = "soft"
phase = 1
seeds = [1]

[encoders.untrained]
run = "soft-0"
untrained = true

[encoders.mfcc]
encoder = "mfcc"

[evaluate.cost]
command = "sjepa cost --encoder {{encoder}} --out '{{folder}}/results/cost.json'"
makes = "results/cost.json"

[evaluate.units]
command = "units --encoder {{run}} --out {{folder}}/results/units"
makes = "results/units/results.json"
on = ["soft-*", "hard-0", "mfcc"]

[evaluate.absent]
command = "superb asr --encoder {{encoder}}"
makes = "results/asr.json"
needs = "{out}/nowhere"
"""


@pytest.fixture
def file(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_AUDIO", str(corpus))
    (tmp_path / "base.toml").write_text(to_toml(micro_config(phase1={"steps": 2}, phase2={"steps": 4})))
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(out=tmp_path / "out"))
    return file


def read(file: Path) -> Sweep:
    return read_sweep(file, COMMANDS)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands as they are launched. Training runs in this process, evaluations only leave a file."""
    made: list[list[str]] = []

    def launch(arguments: Sequence[str], program: Sequence[str] = ()) -> int:
        made.append(list(arguments))
        if arguments[0] == "pretrain":
            try:
                dispatch([*arguments])
            except UserError as error:
                print(error)
                return 2
        elif "--out" in arguments:
            out = Path(arguments[arguments.index("--out") + 1])
            out = out if out.suffix else out / "results.json"
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps({"arguments": list(arguments)}))
        return 0

    monkeypatch.setattr(work, "launch", launch)
    monkeypatch.setenv("COLUMNS", "200")
    return made


def test_runs_share_first_phases_by_themselves(file: Path, tmp_path: Path) -> None:
    sweep = read(file)
    shared = {item.name: (item.parent.name if item.parent else None, item.shared) for item in sweep.items}
    assert shared == {
        "soft-0": (None, 0),
        "soft-1": (None, 0),
        "hard-0": (None, 0),
        "frozen-0": ("soft-0", 1),
        "hard-long-0": ("hard-0", 1),
        "as-it-is-0": ("soft-0", 1),
        "soft.phase1-1": ("soft-1", 1),
        "untrained": ("soft-0", 1),
        "mfcc": (None, 0),
    }
    configs = {item.name: item.config for item in sweep.runs}

    def expected(**sections: object) -> Config:
        return micro_config(**({"phase1": {"steps": 2}, "phase2": {"steps": 3}} | sections))

    assert configs["soft-0"] == expected()
    assert configs["soft-1"] == expected(seed=1)
    assert configs["hard-0"] == expected(phase1={"steps": 2, "hard": True}, phase2={"steps": 3, "hard": True})
    assert configs["as-it-is-0"] == expected(phase2={"steps": 4})
    assert sweep.out == tmp_path / "out"


def test_a_sweep_trains_measures_compares_and_continues(
    file: Path, calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["sweep", str(file)])
    out = read(file).out
    trained = [call for call in calls if call[0] == "pretrain"]
    assert len(trained) == 6
    assert sum("--branch-from" in call for call in trained) == 3
    assert all(RunFolder(item.folder).is_complete for item in read(file).runs)
    assert lines(out / "frozen-0", "train")[:2] == lines(out / "soft-0", "train")[:2]
    units = [call[call.index("--encoder") + 1] for call in calls if call[0] == "units"]
    assert units == [str(out / name) for name in ("soft-0", "soft-1", "hard-0")]  # mfcc is no run
    costs = [call[call.index("--encoder") + 1] for call in calls if call[0] == "cost"]
    assert costs[-3:] == [str(out / "soft-1" / "encoder-phase1"), f"untrained:{out / 'soft-0'}", "mfcc"]
    assert len(costs) == 9
    assert "skipping absent, because" in capsys.readouterr().out
    report = calls[-1]
    assert report[0] == "report"
    assert report[1:7] == [str(run.folder) for run in read(file).runs]
    assert str(out / "mfcc") in report[report.index("--results") :]
    calls.clear()
    dispatch(["sweep", str(file)])
    assert [call[0] for call in calls] == ["report"]  # nothing else is left to do
    calls.clear()
    # More steps in the file lengthen the run, and it is measured again.
    file.write_text(file.read_text().replace("steps = 5", "steps = 6"))
    capsys.readouterr()
    dispatch(["sweep", str(file), "--list"])
    assert "to be lengthened" in capsys.readouterr().out
    dispatch(["sweep", str(file)])
    assert [call[0] for call in calls] == ["pretrain", "cost", "report"]
    assert RunFolder(out / "hard-long-0").step == 8


def test_a_superb_evaluation_of_an_earlier_state_is_replaced(file: Path) -> None:
    superb = '[evaluate.asr]\ncommand = "superb asr --encoder {encoder} --data a --out {folder}/results/asr"\n'
    file.write_text(file.read_text() + superb + 'makes = "results/asr/results.json"\n')
    sweep = read(file)
    item, evaluation = sweep.runs[0], sweep.evaluations[-1]
    assert "--replace" not in evaluation.arguments(item)
    evaluation.result(item).parent.mkdir(parents=True)  # an evaluation that has begun
    assert evaluation.arguments(item)[-1] == "--replace"


def test_one_task_trains_the_phases_that_its_run_needs(
    file: Path, calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["sweep", str(file), "--array"])
    assert capsys.readouterr().out == "0-8\n"
    dispatch(["sweep", str(file), "--task", "3"])
    out = read(file).out
    assert RunFolder(out / "frozen-0").is_complete
    assert RunFolder(out / "soft-0").step == 2  # its first phase alone
    assert not RunFolder(out / "soft-0").is_complete
    assert [call[0] for call in calls] == ["pretrain", "pretrain", "cost"]
    dispatch(["sweep", str(file), "--only", "soft.phase1-1", "soft-0"])
    assert RunFolder(out / "soft-0").is_complete
    assert RunFolder(out / "soft-1").step == 2
    dispatch(["sweep", str(file), "--list"])
    assert "phase 1 of soft-0" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"--only sofft-0: .* \(did you mean soft-0\?\)"):
        dispatch(["sweep", str(file), "--only", "sofft-0"])
    with pytest.raises(UserError, match="--task 9: the last task is 8"):
        dispatch(["sweep", str(file), "--task", "9"])


def test_a_task_waits_for_a_run_that_another_process_trains(
    file: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = read(file)
    parent = RunFolder(sweep.out / "soft-0")
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with parent.lock():
            held.set()
            free.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(30)
    monkeypatch.setattr(work, "wait_for_lock", lambda: (free.set(), other.join()))
    dispatch(["sweep", str(file), "--task", "3"])
    assert "soft-0: another process is training it; waiting" in capsys.readouterr().out
    assert RunFolder(sweep.out / "frozen-0").is_complete


def test_two_processes_evaluate_a_run_once(
    file: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = read(file)
    item = next(item for item in sweep.items if item.name == "mfcc")
    launch, begun, go_on = work.launch, threading.Event(), threading.Event()

    def launch_slowly(arguments: Sequence[str], program: Sequence[str] = ()) -> int:
        begun.set()
        go_on.wait(30)
        return launch(arguments, program)

    monkeypatch.setattr(work, "launch", launch_slowly)
    workers = [threading.Thread(target=work.measure, args=(sweep, item)) for _ in range(2)]
    workers[0].start()
    begun.wait(30)
    workers[1].start()
    time.sleep(0.3)
    go_on.set()
    for worker in workers:
        worker.join(30)
    assert [call[0] for call in calls] == ["cost"]
    assert "mfcc: another process is evaluating it; waiting" in capsys.readouterr().out


def test_what_fails_does_not_hold_up_the_rest(
    file: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = work.launch

    def fail(arguments: Sequence[str], program: Sequence[str] = ()) -> int:
        return 2 if "soft-0" in arguments[-1] else launch(arguments, program)

    monkeypatch.setattr(work, "launch", fail)
    with pytest.raises(UserError, match=r"soft-0, frozen-0 failed \(see above\); run the same command to try again"):
        dispatch(["sweep", str(file), "--only", "soft-0", "frozen-0", "hard-0"])
    assert "frozen-0: left out, because soft-0 failed" in capsys.readouterr().out
    assert RunFolder(read(file).out / "hard-0").is_complete


def test_an_evaluation_that_fails_does_not_hold_up_training_or_other_evaluations(
    file: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = work.launch

    def fail(arguments: Sequence[str], program: Sequence[str] = ()) -> int:
        return 2 if arguments[0] == "cost" and "soft-0" in arguments[2] else launch(arguments, program)

    monkeypatch.setattr(work, "launch", fail)
    file.write_text(file.read_text().replace('makes = "results/units/results.json"', 'makes = "results/other.json"'))
    with pytest.raises(UserError, match=r"soft-0 failed \(see above\)"):
        dispatch(["sweep", str(file), "--only", "soft-0", "frozen-0"])
    out = read(file).out
    assert [call[0] for call in calls] == ["pretrain", "units", "pretrain", "cost"]
    assert RunFolder(out / "frozen-0").is_complete  # it needs soft-0's first phase alone
    missing = f"evaluate.units.makes: the command did not write {out / 'soft-0' / 'results' / 'other.json'}"
    assert missing in capsys.readouterr().out


def test_a_run_that_fails_again_after_progress_is_not_started_forever(
    file: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = work.launch

    def train_and_fail(arguments: Sequence[str], program: Sequence[str] = ()) -> int:
        assert len(calls) < 3
        out = RunFolder(arguments[arguments.index("--out") + 1])
        if not out.exists:
            launch([*arguments, "--stop-after-phase", "1"])
        else:
            calls.append(list(arguments))
            out.checkpoint(3).mkdir()  # some progress
        return 2

    monkeypatch.setattr(work, "launch", train_and_fail)
    with pytest.raises(UserError, match=r"soft-0 failed"):
        dispatch(["sweep", str(file), "--only", "soft-0"])
    assert len(calls) == 2


def test_a_run_of_other_audio_is_refused_and_listed(
    file: Path, corpus: Path, tmp_path: Path, calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["sweep", str(file), "--only", "soft-0"])
    sweep = ["sweep", str(file), "--only", "soft-0", "frozen-0"]
    other = Path(shutil.copytree(corpus, tmp_path / "other"))  # its files may have the same names and lengths
    calls.clear()
    with pytest.raises(UserError, match=r"soft-0, frozen-0 failed"):
        dispatch([*sweep, "--data", str(other)])
    assert not calls  # it is neither measured nor branched from
    soft = RunFolder(tmp_path / "out" / "soft-0")
    reason = f"{soft} was trained on {corpus}, but the data of the sweep is {other}: give the same data"
    assert f"soft-0: failed; continuing without it: {reason}" in capsys.readouterr().out
    dispatch([*sweep, "--data", str(other), "--list"])
    assert "refused: " in capsys.readouterr().out
    # The newest audio of a run counts.
    facts = replace_audio(soft.facts, str(other), "another fingerprint", 3)
    soft.facts_file.write_text(json.dumps(soft.record | facts))
    dispatch([*sweep, "--data", str(other), "--list"])
    assert "refused: " not in capsys.readouterr().out


def test_the_same_audio_may_be_spelled_differently_or_be_moved(
    file: Path, corpus: Path, tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ["sweep", str(file), "--only", "soft-0"]
    audio = Path(shutil.copytree(corpus, tmp_path / "audio"))
    dispatch([*sweep, "--data", str(audio)])
    monkeypatch.chdir(tmp_path)
    calls.clear()
    dispatch([*sweep, "--data", "audio"])
    dispatch([*sweep, "--data", f"{audio}/"])
    audio.rename("moved")
    dispatch([*sweep, "--data", "moved"])
    assert not calls
    (tmp_path / "moved" / "00.wav").unlink()
    with pytest.raises(UserError, match="soft-0 failed"):
        dispatch([*sweep, "--data", str(tmp_path / "moved")])


def test_a_damaged_run_does_not_hold_up_the_rest(
    file: Path, tmp_path: Path, calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "out" / "soft-0" / "config.toml"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("x = [")
    dispatch(["sweep", str(file), "--list"])
    assert "damaged: " in capsys.readouterr().out
    with pytest.raises(UserError, match=r"soft-0, frozen-0 failed"):
        dispatch(["sweep", str(file), "--only", "soft-0", "frozen-0", "hard-0"])
    assert f"soft-0: failed; continuing without it: {damaged} is not valid TOML" in capsys.readouterr().out
    assert RunFolder(tmp_path / "out" / "hard-0").is_complete
    dispatch(["sweep", str(file), "--only", "hard-0"])  # all of these are finished


HARD = "phase1.hard = true"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (HARD, "phase1.hardd = true", "study.toml: runs.hard: unknown key phase1.hardd (did you mean hard?)"),
        (HARD, "phase1.k = 'many'", "study.toml: runs.hard: phase1.k = 'many' should be of type int"),
        (HARD, "phase1.steps = 0", "study.toml: runs.hard: phase1.steps = 0: it should be greater than 0"),
        ("phase2.steps = 3", "phase2.step = 3", "study.toml: sweep.settings: unknown key phase2.step"),
        ("seeds = [0]", "seeds = [0, 0]", "study.toml: sweep: seeds should be a list of different whole numbers"),
        ("[runs.soft]", "[runs.soft]\nseed = 3", "study.toml: runs.soft: give seeds"),
        ("[runs.soft]", "[runs.'a/b']", "study.toml: runs.a/b: a name has letters"),
        ("[runs.soft]", "[run.soft]", "study.toml: unknown key run (did you mean runs?)"),
        ('preset = "base.toml"\ndata', 'preset = "tinny"\ndata', "there is no preset 'tinny' (did you mean tiny?)"),
        ("$SWEEP_AUDIO", "$NO_SUCH", "sweep.data = '$NO_SUCH': the environment variable NO_SUCH is not set"),
        ('run = "soft"', 'run = "sofd"', "encoders.soft.phase1.run: there is no run sofd-1 (did you mean soft-1?)"),
        ("phase = 1", "phase = 2", "encoders.soft.phase1.phase = 2: soft-1 keeps the encoders of phases before"),
        ("sjepa cost", "sjepa coast", "evaluate.cost.command: sjepa has no command 'coast'"),
        ("{encoder}", "{model}", "evaluate.cost.command: there is no {model}; there are {encoder}, {run}, {folder}"),
        ('"hard-0", "mfcc"', '"hart-0"', "evaluate.units.on: there is no hart-0 (did you mean hard-0?)"),
        ('makes = "results/cost.json"', "", "evaluate.cost: makes is missing"),
        ("[sweep]", "[sweep", "study.toml is not valid TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused_before_any_work(file: Path, old: str, new: str, words: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(UserError) as refusal:
        read(file)
    assert words in str(refusal.value)
    assert not (file.parent / "out").exists()


def test_quoted_and_plain_keys_mean_the_same() -> None:
    assert nest({"a.b": 1, "a": {"c": 2}, "d": 3}, "") == {"a": {"b": 1, "c": 2}, "d": 3}
    with pytest.raises(UserError, match="a is a value and a section"):
        nest({"a": 1, "a.b": 2}, "file")


def test_a_signal_reaches_the_command_and_stops_the_sweep(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
        f"pathlib.Path({str(mark)!r}).touch(); time.sleep(60)"
    )

    def send() -> None:
        while not mark.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(work.SweepStoppedError):
        work.launch([], [sys.executable, "-c", code])
    sender.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert work.launch([], [sys.executable, "-c", "raise SystemExit(3)"]) == 3


def test_commands_run_in_processes_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert work.launch(["--version"]) == 0
    assert capfd.readouterr().out.strip() == __version__
