"""Runs that were killed or stopped continue exactly as if they had not been, on one rank and on two."""

import signal
import time
from pathlib import Path

import safetensors.torch
import torch
from processes import Command, start_ranks
from small_runs import Make, arguments, lines

from sjepa import Encoder
from sjepa.runs.folder import RunFolder
from sjepa.train.loop import pretrain

REFITTED = {
    "refit_every": 3,
    "dimensions": 4,
    "directions": "discriminant",
}  # a checkpoint and a refit fall on one step


def test_a_run_killed_at_any_step_and_continued_equals_an_uninterrupted_one(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = micro(
        train={"checkpoint_every": 2, "optimizer": "muon"}, phase1={"steps": 9}, phase2=REFITTED | {"steps": 14}
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert pretrain(config, corpus, whole, show=False)
    kill_and_finish(arguments(config, corpus, killed, tmp_path), killed, kills=(3, 11, 13))
    assert lines(killed) == lines(whole)
    for part in ("encoder", "encoder-phase1"):
        weights = [(run / part / "model.safetensors").read_bytes() for run in (whole, killed)]
        assert weights[0] == weights[1]
    assert (whole / "gmm-phase2.safetensors").read_bytes() == (killed / "gmm-phase2.safetensors").read_bytes()


def kill_and_finish(call: list[str], run: Path, kills: tuple[int, ...], world_size: int = 1) -> None:
    """Start, SIGKILL once the log has so many training lines, and again; then let it finish."""
    log, output = run / "metrics.jsonl", run.with_name("output.txt")
    for after in kills:
        ranks = start_ranks(call, output, world_size)
        deadline = time.monotonic() + 120
        while ranks[0].is_running and time.monotonic() < deadline:
            if log.exists() and log.read_text().count('"event": "train"') >= after:
                break
            time.sleep(0.005)
        for rank in ranks:
            rank.kill()
    ranks = start_ranks(call, output, world_size)
    assert [rank.wait() for rank in ranks] == [0] * world_size, ranks[0].text
    assert "Continuing" in ranks[0].text


def test_two_ranks_killed_and_continued_equal_two_ranks_never_stopped(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = micro(train={"checkpoint_every": 2}, phase2=REFITTED | {"steps": 12})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ranks = start_ranks(arguments(config, corpus, whole, tmp_path), tmp_path / "whole.txt", 2)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].text
    kill_and_finish(arguments(config, corpus, killed, tmp_path), killed, kills=(8,), world_size=2)
    assert lines(killed) == lines(whole)
    assert (whole / "encoder" / "model.safetensors").read_bytes() == (
        killed / "encoder" / "model.safetensors"
    ).read_bytes()


def test_ctrl_c_saves_and_the_same_command_continues(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = micro(train={"checkpoint_every": 1000}, phase1={"steps": 30})
    run = tmp_path / "run"
    process = Command(arguments(config, corpus, run, tmp_path), tmp_path / "output.txt")
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_text().count("\n") < 5:
        time.sleep(0.01)
    process.send(signal.SIGINT)
    assert process.wait() == 130
    assert "the same command continues" in process.text
    stopped = RunFolder(run).checkpoint_steps[0]
    assert 0 < stopped < 30
    assert lines(run, "train")[-1]["step"] == stopped
    assert lines(run, "stopped") == [{"event": "stopped", "step": stopped}]
    saved = safetensors.torch.load_file(RunFolder(run).checkpoint(stopped) / "model.safetensors")
    usable = Encoder.from_pretrained(run).state_dict()
    assert all(torch.equal(weights, saved[f"encoder.{name}"]) for name, weights in usable.items())
    assert not (run / "encoder-phase1").exists()
    assert pretrain(config, corpus, run, show=False)
    assert lines(run, "train")[-1]["step"] == config.steps
    assert not lines(run, "stopped")
