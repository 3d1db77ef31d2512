"""The run folder: one class owns its file names, reads it without torch, and writes files completely or not at all."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import sjepa
from sjepa import UserError
from sjepa.files import atomic_file, atomic_folder
from sjepa.runs.folder import RunFolder, planned_steps
from sjepa.runs.locate import find_run, name_encoder

SOURCE = Path(sjepa.__file__).parent
NAMES = ("config.toml", "run.json", "metrics.jsonl", "encoder-phase", "gmm-phase")
ABOVE_TRAIN = ("evaluate", "export", "embed", "report", "analysis", "commands")

READ = """
import sys
from sjepa.runs import checkpoint, events
from sjepa.runs.folder import RunFolder
run = RunFolder(sys.argv[1])
assert run.exists and run.is_complete
assert run.settings["phase1"]["steps"] + run.settings["phase2"]["steps"] == run.planned_steps == run.step == 12
assert run.facts["data"] == run.data
assert [event["step"] for event in events.select_events(run.events(), "train")] == list(range(1, 13))
assert run.checkpoint_steps == [12, 9, 6]
assert checkpoint.read_state(run.checkpoint(12))["step"] == 12
assert run.encoder.is_dir() and run.phase_encoder(1).is_dir() and run.codebook(2).is_file()
assert not {"torch", "safetensors", "numpy"} & sys.modules.keys()
"""


def test_a_run_is_read_without_torch(finished_run: Path) -> None:
    done = subprocess.run([sys.executable, "-c", READ, str(finished_run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        within = path.relative_to(SOURCE).parts[0]
        if not folders or within in folders:
            yield path, ast.parse(path.read_text("utf-8"))


def is_file_name(text: object) -> bool:
    """Sentences for people may name files."""
    if not isinstance(text, str) or " " in text:
        return False
    return text == "checkpoints" or any(name in text for name in NAMES)


def test_only_the_owner_knows_the_names_of_a_runs_files() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.value}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and is_file_name(node.value) and path.parent.name != "runs"
    ]
    assert not found


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_what_reads_a_run_does_not_import_training() -> None:
    forbidden = tuple(f"sjepa.{name}" for name in ("train", *ABOVE_TRAIN))
    for path, tree in trees("runs"):
        assert not [name for name in imported(tree) if name.startswith(forbidden)], path
    for path, tree in trees("evaluate", "export", "report", "embed", "watch.py", "model"):
        assert not [name for name in imported(tree) if name.startswith("sjepa.train")], path


def test_steps_of_any_number_of_phases_are_planned(tmp_path: Path) -> None:
    settings = {"seed": 3, "phase1": {"steps": 5}, "phase2": {"steps": 7}, "phase10": {"steps": 100}, "phases": "x"}
    assert planned_steps(settings) == 112
    assert planned_steps({}) == 0
    assert planned_steps({"phase1": {"lr": 1.0}, "phase2": 3}) == 0
    run = RunFolder(tmp_path)
    assert run.planned_steps == 0
    run.config_file.write_text("[phase1]\nsteps = 4\n[phase3]\nsteps = 2\n")
    assert run.planned_steps == 6
    run.config_file.write_text("[phase1\n")
    with pytest.raises(UserError, match="is not valid TOML"):
        _ = run.planned_steps


def test_the_step_is_the_newest_checkpoints_or_the_last_lines(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.step == 0
    events = [{"event": "train", "step": 3}, {"event": "train", "step": 6}, {"event": "stopped", "step": 8}]
    run.log.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert run.step == 6
    for step in (4, 5):
        run.checkpoint(step).mkdir(parents=True)
    (run.checkpoints / "step-old").mkdir()
    assert run.step == 5
    assert run.checkpoint_steps == [5, 4]


def test_an_encoder_is_named_after_its_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "demo" / "run")
    for folder in (run.encoder, run.phase_encoder(3), run.checkpoint(5), tmp_path / "hubert"):
        folder.mkdir(parents=True)
    assert name_encoder(run.encoder) == "demo"  # not a run yet
    run.config_file.write_text("[phase1]\nsteps = 6\n")
    assert name_encoder(run.encoder) == "demo-step-5"
    assert name_encoder(run.phase_encoder(3)) == "demo-phase3"
    run.checkpoint(6).mkdir()
    assert run.is_complete
    assert name_encoder(run.encoder) == "demo"
    assert name_encoder(tmp_path / "hubert") == "hubert"
    for path in (run.path, run.encoder, run.phase_encoder(3)):
        found = find_run(path)
        assert found is not None
        assert found.path == run.path
    assert find_run(tmp_path / "hubert") is None
    assert find_run(run.path / "nowhere") is None


def test_what_is_no_run_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no run .*`sjepa pretrain --preset tiny --data AUDIO --out"):
        RunFolder(tmp_path / "none").require()
    run = RunFolder(tmp_path)
    for use in (run.require, run.config):
        with pytest.raises(UserError, match=r"is not a run: it has no config\.toml"):
            use()
    run.config_file.touch()
    run.require()
    with pytest.raises(UserError, match=r"has no encoder/model\.safetensors: the first checkpoint makes one"):
        run.require(run.encoder / "model.safetensors")
    with pytest.raises(UserError, match=r"has no metrics\.jsonl: give the folder of a run that has started"):
        run.events()


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"

    def files() -> dict[str, str]:
        return {path.name: path.read_text() for path in target.rglob("*.txt")}

    def write(name: str, text: str, existing: Literal["refuse", "replace", "merge"] = "refuse") -> None:
        before = files()
        with atomic_folder(target, existing) as folder:
            (folder / "below").mkdir()
            (folder / "below" / "deep.txt").write_text(text)
            (folder / name).write_text(text)
            assert files() == before
            if text == "fails":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("a.txt", "fails")
    assert not list(tmp_path.iterdir())
    target.mkdir()  # empty, so it may be taken
    write("a.txt", "one")
    assert files() == {"a.txt": "one", "deep.txt": "one"}
    with pytest.raises(OSError, match="not empty"):
        write("b.txt", "two")
    with pytest.raises(KeyboardInterrupt):
        write("b.txt", "fails", existing="replace")
    assert files() == {"a.txt": "one", "deep.txt": "one"}
    write("b.txt", "two", existing="replace")
    assert files() == {"b.txt": "two", "deep.txt": "two"}
    with atomic_folder(target, "merge") as folder:
        (folder / "c.txt").write_text("three")
    assert files() == {"b.txt": "two", "deep.txt": "two", "c.txt": "three"}
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    target.write_text("old")

    def write(text: str) -> None:
        with atomic_file(target) as partial:
            partial.write_text(text)
            assert target.read_text() == "old"
            if text == "fails":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("fails")
    assert target.read_text() == "old"
    write("new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]
