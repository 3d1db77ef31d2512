"""Checkpoints: complete or absent, checked when they are read, never pickled."""

import json
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import Command

from sjepa import UserError
from sjepa.config import Config
from sjepa.files import save_tensors
from sjepa.runs import checkpoint
from sjepa.runs.folder import RunFolder
from sjepa.train.loop import pretrain

PARTS = {"model": {"a": torch.arange(5.0), "b": torch.ones(2, 3)}, "meter": {"n": torch.tensor(3)}}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    checkpoint.save(RunFolder(tmp_path), 7, PARTS, {"position": [1, 2]})
    parts, state = checkpoint.load(RunFolder(tmp_path).checkpoint(7))
    assert state["step"] == 7
    assert state["position"] == [1, 2]
    for name, tensors in PARTS.items():
        for key, tensor in tensors.items():
            assert torch.equal(parts[name][key], tensor)


def test_copies_to_write_stay_while_training_goes_on_and_are_allocated_once() -> None:
    staging, parts = checkpoint.Staging(), {"model": {"a": torch.arange(5.0), "b": torch.ones(2, 3)}}
    copies = staging.copy(parts)["model"]
    for tensor in parts["model"].values():
        tensor.add_(1.0)  # a step in place, as optimizers take it
    assert copies["a"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(copies["b"], torch.ones(2, 3))
    parts["model"]["b"] = torch.zeros(4, 3)  # a new output of the head
    again = staging.copy(parts)["model"]
    assert again["a"].data_ptr() == copies["a"].data_ptr()
    assert again["a"].tolist() == [1, 2, 3, 4, 5]
    assert torch.equal(again["b"], torch.zeros(4, 3))


@pytest.mark.parametrize("harm", ["flip", "cut", "drop", "state"])
def test_a_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.save(RunFolder(tmp_path), 5, PARTS, {})
    checkpoint.save(RunFolder(tmp_path), 10, PARTS, {})
    file = RunFolder(tmp_path).checkpoint(10) / ("state.json" if harm == "state" else "model.safetensors")
    data = bytearray(file.read_bytes())
    if harm == "drop":
        file.unlink()
    elif harm == "flip":
        data[-3] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[: len(data) // 2])
    found = checkpoint.load_latest(RunFolder(tmp_path))
    assert found is not None
    assert found[1]["step"] == 5
    assert "step-00000010 is damaged" in capsys.readouterr().out.splitlines()[0]
    for path in RunFolder(tmp_path).checkpoint(5).iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"all checkpoints .* are damaged"):
        checkpoint.load_latest(RunFolder(tmp_path))


def test_a_folder_left_by_a_kill_is_not_a_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(RunFolder(tmp_path), 5, PARTS, {})
    half = tmp_path / "checkpoints" / ".step-00000010.0123abcd.partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert RunFolder(tmp_path).checkpoint_steps == [5]
    checkpoint.save(RunFolder(tmp_path), 10, PARTS, {})
    assert RunFolder(tmp_path).checkpoint_steps == [10, 5]
    assert not half.exists()


def test_only_the_last_few_are_kept_and_the_boundary(tmp_path: Path) -> None:
    for step in range(1, 7):
        checkpoint.save(RunFolder(tmp_path), step, PARTS, {})
    checkpoint.prune(RunFolder(tmp_path), 6, 2, always={3})
    assert RunFolder(tmp_path).checkpoint_steps == [6, 5, 3]


def test_a_run_that_continues_before_a_damaged_checkpoint_keeps_what_it_writes(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (4, 8):
        checkpoint.save(run, step, PARTS, {})
    (run.checkpoint(8) / "model.safetensors").write_bytes(b"damaged")
    checkpoint.save(run, 5, PARTS, {})
    checkpoint.prune(run, 5, 1, always=set())
    assert run.checkpoint_steps == [5]


def test_a_lack_of_memory_is_not_taken_for_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(torch.OutOfMemoryError), checkpoint.refuse_unfit(run):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(UserError, match="does not fit"), checkpoint.refuse_unfit(run):
        torch.nn.Linear(2, 2).load_state_dict({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)})


def limit_files() -> None:
    """Let the kernel refuse to write longer files, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


def fill_disk(arguments: list[str]) -> None:
    run = RunFolder(arguments[0])
    checkpoint.save(run, 1, {"model": {"a": torch.zeros(1000)}}, {})
    limit_files()
    try:
        checkpoint.save(run, 2, {"model": {"a": torch.zeros(1_000_000)}}, {})
    except UserError as error:
        print(error)
        print(checkpoint.load_latest(run)[1]["step"], [p.name for p in run.checkpoints.iterdir()])


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    command = Command([str(tmp_path / "run")], tmp_path / "output.txt", main=fill_disk)
    assert command.wait() == 0, command.text
    assert "cannot write the checkpoint of step 2" in command.text
    assert "the last good checkpoint is at step 1" in command.text
    assert "1 ['step-00000001']" in command.text


def replace_weights(arguments: list[str]) -> None:
    path = Path(arguments[0])
    path.parent.mkdir()
    save_tensors(path, {"a": torch.zeros(1000)})
    limit_files()
    try:
        save_tensors(path, {"a": torch.zeros(1_000_000)})
    except OSError as error:
        print(error.filename, path.stat().st_size > 4000, [p.name for p in path.parent.iterdir()])


def test_weights_that_do_not_fit_name_their_file_and_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "weights" / "model.safetensors"
    command = Command([str(path)], tmp_path / "output.txt", main=replace_weights)
    assert command.wait() == 0, command.text
    assert command.text.strip() == f"{path} True ['model.safetensors']"


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can only be mounted by root")
def test_training_on_a_disk_that_fills_up_ends_with_one_line(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        config = micro(train={"checkpoint_every": 1, "keep_checkpoints": 50})
        with pytest.raises(UserError, match=r"No space left on device.*last good checkpoint is at step"):
            pretrain(config, corpus, disk / "run", show=False)
        found = checkpoint.load_latest(RunFolder(disk / "run"))
        assert found is not None
        assert found[1]["step"] >= 1
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_whatever_fails_in_the_background_is_raised_by_the_next_wait() -> None:
    writer = checkpoint.Writer()
    for failure in (UserError("no room"), MemoryError("no memory"), TypeError("a fault")):

        def fail(failure: Exception = failure) -> None:
            raise failure

        writer.start(fail)
        with pytest.raises(type(failure)):
            writer.wait()
        writer.wait()


def test_one_failed_write_is_repeated_and_a_second_one_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    written: list[int] = []

    def fail() -> None:
        raise UserError("no room")

    writer = checkpoint.Writer()
    writer.start(fail)
    writer.start(lambda: written.append(1))
    writer.raise_repeated()
    assert written == [1]
    assert capsys.readouterr().out == "A checkpoint could not be written (no room); trying again\n"
    writer.start(fail)
    writer.raise_repeated()  # still in the background
    writer.start(fail)
    with pytest.raises(UserError, match="no room"):
        writer.raise_repeated()


def test_nothing_in_the_package_unpickles() -> None:
    source = Path(checkpoint.__file__).parents[1]
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert "pickle.load" not in text
        assert "Unpickler(" not in text
        assert "from pickle" not in text
        assert "torch.load(" not in text or "weights_only=True" in text


def test_state_is_plain_json(tmp_path: Path) -> None:
    checkpoint.save(RunFolder(tmp_path), 3, PARTS, {"ranks": [1.5]})
    state = json.loads((RunFolder(tmp_path).checkpoint(3) / "state.json").read_text())
    assert state["ranks"] == [1.5]
    assert set(state["files"]) == {"model.safetensors", "meter.safetensors"}
