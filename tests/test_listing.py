"""`sjepa runs`: facts about many runs, read quickly and without torch."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sjepa import Encoder, UserError
from sjepa.cli import dispatch
from sjepa.model.formats import fingerprint
from sjepa.report.listing import Listed, as_tables, find_runs, find_state, list_runs, unusual_settings
from sjepa.runs.events import last_event
from sjepa.runs.folder import RunFolder
from sjepa.runs.history import record_start

PROBE = {
    "task": "probe",
    "corpus": "made up",
    "encoder": {"name": "hard", "parameters": 5, "fingerprint": "x"},
}


@pytest.fixture
def study(finished_run: Path, tmp_path: Path) -> Path:
    """Three runs: one is complete, one was killed, one has not begun; and things that are no runs."""
    study = tmp_path / "study"
    shutil.copytree(finished_run, study / "soft")
    hard = RunFolder(shutil.copytree(finished_run, study / "deeper" / "hard"))
    hard.config_file.write_text(
        hard.settings_text.replace("[phase1]\nsteps = 6", "[phase1]\nsteps = 60").replace(
            "hard = false", "hard = true", 1
        )
    )
    record_start(hard, 12, {"world_size": 2, "device": "cpu"}, [("train.device", "cpu", "cuda")])
    ours = {"fingerprint": fingerprint(Encoder.from_pretrained(hard.path))}
    for name, encoder, score in (("probe", ours, 71.25), ("probe-before", {}, 60.0)):  # the other before more steps
        (hard.results / name).mkdir(parents=True)
        layers = {"layer 1": {"phoneme linear": {"mean": score, "deviation": 0.5}}}
        result = PROBE | {"encoder": PROBE["encoder"] | encoder, "layers": layers}
        (hard.results / name / "results.json").write_text(json.dumps(result))
    new = RunFolder(study / "new")
    new.path.mkdir()
    shutil.copy2(finished_run / "config.toml", new.config_file)
    (study / "notes").mkdir()
    (study / "notes" / "a.txt").touch()
    return study


def test_runs_are_listed_with_what_differs(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["runs", str(study), "--format", "json"])
    found = {run["name"]: run for run in json.loads(capsys.readouterr().out)}
    assert list(found) == ["deeper/hard", "new", "soft"]
    hard, soft = found["deeper/hard"], found["soft"]
    assert (soft["state"], soft["step"], soft["planned"], soft["phase"]) == ("complete", 12, 12, 2)
    assert (hard["state"], hard["step"], hard["planned"]) == ("killed", 12, 66)
    assert (found["new"]["state"], found["new"]["step"], found["new"]["loss"]) == ("new", 0, None)
    assert soft["loss"] == last_event(study / "soft" / "metrics.jsonl", "train")["loss"]  # type: ignore[index]
    assert hard["results"] == {"phoneme linear": 71.25}
    assert hard["settings"] == {"data": hard["data"], "phase1.steps": 60, "phase1.hard": True}
    assert soft["settings"] == {"data": soft["data"], "phase1.steps": 6, "phase1.hard": False}
    dispatch(["runs", str(study), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["phase1.steps"] for row in rows] == ["60", "6", "6"]
    assert [row["phoneme linear"] for row in rows] == ["71.25", "", ""]
    listed = list_runs(find_runs([study]))
    assert [list(settings) for settings in unusual_settings(listed)] == [["phase1.steps", "phase1.hard"], ["data"], []]


def test_the_table_shows_one_run_with_its_history(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    dispatch(["runs", str(study)])
    shown = capsys.readouterr().out
    assert "12 / 66" in shown
    assert "phase1.hard = True" in shown
    assert "phoneme linear 71.25" in shown
    dispatch(["runs", str(study / "deeper" / "hard")])
    shown = capsys.readouterr().out
    assert "killed" in shown
    assert "train.device: cpu -> cuda" in shown
    (study / "soft" / "config.toml").write_text("[phase1")
    dispatch(["runs", str(study)])
    assert "damaged" in capsys.readouterr().out
    with pytest.raises(UserError, match="there is no run in"):
        dispatch(["runs", str(study / "notes")])


def test_scores_of_other_layers_and_corpora_do_not_replace_each_other(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hard = RunFolder(study / "deeper" / "hard")
    first = json.loads((hard.results / "probe" / "results.json").read_text())
    encoder = first["encoder"] | {"states": 4}
    others = {
        "seed": {"seed": 1, "layers": {"layer 2": {"phoneme linear": {"mean": 73.25, "deviation": 0.5}}}},
        "shallow": {"layers": {"layer 0": {"phoneme linear": {"mean": 40.0, "deviation": 0.5}}}},
        "zoo": {"corpus": "zoo", "layers": {"layer 2": {"phoneme linear": {"mean": 20.0, "deviation": 0.5}}}},
    }
    for name, other in others.items():
        (hard.results / name).mkdir()
        (hard.results / name / "results.json").write_text(json.dumps(first | {"encoder": encoder} | other))
    soft = RunFolder(study / "soft")
    ours = {"encoder": encoder | {"fingerprint": fingerprint(Encoder.from_pretrained(soft.path))}}
    (soft.results / "probe").mkdir(parents=True)
    (soft.results / "probe" / "results.json").write_text(json.dumps(first | ours))
    dispatch(["runs", str(study), "--format", "json"])
    found = {run["name"]: run["results"] for run in json.loads(capsys.readouterr().out)}
    assert found["deeper/hard"] == {
        "phoneme linear, made up": 72.25,  # the mean of two seeds
        "phoneme linear, layer 0": 40.0,
        "phoneme linear, zoo": 20.0,
    }
    assert list(found["soft"]) == ["phoneme linear, layer 1"]


def test_a_table_marks_results_from_before_a_run_was_trained_further(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch(["table", str(study / "deeper"), "--format", "csv"])
    assert [row[1:6] for row in csv.reader(capsys.readouterr().out.splitlines()[1:])] == [
        ["hard", "measured", "5e-06", "phoneme linear", "71.25"],
        ["hard (earlier)", "measured", "5e-06", "phoneme linear", "60"],
    ]


def test_a_narrow_terminal_shows_each_run_on_one_line(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    dispatch(["runs", str(study)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for run in ("deeper/hard killed 12 / 66 2", "new new 0 / 12 –", "soft complete 12 / 12 2"):
        assert any(line.startswith(run) for line in lines), run
    assert "deeper/hard phase1.steps = 60" in lines
    assert "phase1.hard = True" in lines
    assert "deeper/hard phoneme linear 71.25" in lines
    dispatch(["runs", str(study / "deeper" / "hard")])
    assert "train.device: cpu -> cuda" in capsys.readouterr().out


def test_many_settings_and_results_are_counted() -> None:
    many = {f"setting{number}": number for number in range(20)}
    listed = [Listed("a", "a", "new", settings=many, results=dict.fromkeys("abcdef", 1.0))]
    listed.append(Listed("b", "b", "new", settings=dict.fromkeys(many)))
    _, settings, results = (list(table.columns[1].cells) for table in as_tables(listed))
    assert str(settings[0]).splitlines()[-2:] == ["setting7 = 7", "and 12 more"]
    assert str(results[0]).splitlines() == ["a 1", "b 1", "c 1", "d 1", "and 2 more"]


def test_a_run_that_is_locked_is_running(study: Path) -> None:
    run = RunFolder(study / "new")
    assert find_state(run) == "new"
    with run.lock():
        assert find_state(run) == "running"
    assert find_state(run) == "new"


def test_the_list_imports_no_torch(finished_run: Path) -> None:
    code = (
        "import sys; from sjepa.cli import dispatch; dispatch(['runs', sys.argv[1]]);"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(finished_run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout


def test_the_last_event_is_found_from_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_event(log, "train") is None
    lines = [{"event": "train", "step": step, "phase": 1} for step in range(3)]
    filler = {"event": "clusters", "step": 3, "phase": 1, "share": [0.25] * 20_000}
    log.write_text("".join(json.dumps(line) + "\n" for line in [*lines, filler]) + '{"event": "train", "st')
    assert last_event(log, "train") == lines[-1]
    assert last_event(log, "layers") is None
