"""Several ranks: the same data and results on any number of them, and nothing lost whatever happens to one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import NO_DROPOUT
from test_training import command, environment, lines, one_batch

from sjepa.config import Config
from sjepa.distributed import agree_on_prefix, first_host, slurm_variables
from sjepa.runs.folder import RunFolder
from sjepa.train.step import train_step

Make = Callable[..., Config]


def plain(micro: Make, **sections: object) -> Config:
    """Without anything that a rank draws for itself, and at a low rate, which keeps differences of rounding small."""
    first, second = (sections.pop(name, {}) for name in ("phase1", "phase2"))
    return micro(
        encoder=NO_DROPOUT | {"layerdrop": 0.3},
        predictor={"dropout": 0.0},
        augment={"p_noise": 0.0, "p_mix": 0.0},
        gmm={"reservoir": 10_000},
        layer={"choice": 1},
        phase1={"lr": 1e-4} | first,
        phase2={"lr": 1e-4} | second,
        batches={"seconds": 4.8, "buckets": (1.0, 1.2), "max_seconds": 2.0},
        **{"train": {"masked_path": "both"}, **sections},  # type: ignore[dict-item]
    )


def train(config: Config, corpus: Path, run: Path, folder: Path, world_size: int = 1) -> str:
    call = command(config, corpus, run, folder, world_size)
    done = subprocess.run(call, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def assert_same_curve(a: Path, b: Path) -> None:
    for key in ("loss", "kl_masked", "kl_visible", "kl_encoder", "target_entropy", "gradient_norm"):
        one, other = ([line[key] for line in lines(run, "train")] for run in (a, b))
        assert other == pytest.approx(one, rel=2e-3), key
    assert [line["step"] for line in lines(a, "train")] == [line["step"] for line in lines(b, "train")]


@pytest.mark.parametrize("phase", [1, 2])
def test_accumulated_parts_equal_the_whole_batch(corpus: Path, micro: Make, phase: int) -> None:
    """One step on four utterances: whole, in parts of 1, 1 and 2, and one by one."""
    found = {}
    for parts in (1, 3, 4):
        config = plain(micro, train={"masked_path": "both", "accumulate": parts})
        run, batch = one_batch(config, corpus, phase)
        assert len(batch.waveforms) == 4
        run.step = config.schedule()[phase - 1].start
        train_step(run, config.schedule()[phase - 1], batch, None)
        # A tenth of the gradients. Softmax does not see a key's bias: its gradient is rounding.
        moments = {
            n: run.optimizer.state[p]["exp_avg"] for n, p in run.model.named_parameters() if "k_proj.bias" not in n
        }
        found[parts] = moments | run.targets.codebook.state_dict() | {"loss": torch.tensor(run.meter.read()["loss"])}
    for parts in (3, 4):
        assert found[parts].keys() == found[1].keys()
        for name, value in found[1].items():
            scale = float(value.abs().max())
            torch.testing.assert_close(found[parts][name], value, rtol=0, atol=5e-4 * scale, msg=name)


def test_a_run_moves_between_numbers_of_ranks_and_stays_the_same(corpus: Path, tmp_path: Path, micro: Make) -> None:
    """1, then 2, then 4, then 1 rank, each stopped by a shorter schedule than it has, against 1 rank throughout."""
    config = plain(micro, train={"checkpoint_every": 3, "masked_path": "both"})
    train(config, corpus, tmp_path / "one", tmp_path)
    moving = tmp_path / "moving"
    for world_size, until in ((1, 3), (2, 6), (4, 9), (1, 12)):
        call = command(config, corpus, moving, tmp_path, world_size)
        call = with_script(call, tmp_path, STOP_AT.format(until=until))
        done = subprocess.run(call, env=environment(), capture_output=True, text=True)
        assert RunFolder(moving).step == until, done.stderr
    assert_same_curve(tmp_path / "one", moving)
    share = [[line["share"] for line in lines(run, "clusters")] for run in (tmp_path / "one", moving)]
    assert len(share[0]) == len(share[1])


STOP_AT = """
import sys
from sjepa.train import agreement
reached = agreement.StopAgreement.reached
agreement.StopAgreement.reached = lambda self: self.run.step == {until} or reached(self)
from sjepa.cli import main
main()
"""

HIDDEN = """
import os
from sjepa.runs import checkpoint
load = checkpoint.load
def hidden(folder):
    if os.environ["RANK"] == "1" and folder.name == "step-00000006":
        raise checkpoint.DamagedError("no such file")
    return load(folder)
checkpoint.load = hidden
from sjepa.cli import main
main()
"""

SCATTERED = """
import os, sys
if os.environ["RANK"] == "1":
    sys.argv[sys.argv.index("--out") + 1] += "-elsewhere"
from sjepa.train import agreement
agreement.PATIENCE = 0.5
from sjepa.cli import main
main()
"""


def with_script(call: list[str], folder: Path, script: str) -> list[str]:
    """A command that runs a script in place of `-m sjepa`."""
    (folder / "script.py").write_text(script)
    at = call.index("sjepa")
    return [*call[: at - 1], str(folder / "script.py"), *call[at + 1 :]]


def test_a_rank_that_cannot_load_the_checkpoint_stops_all_with_one_line(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = plain(micro, train={"checkpoint_every": 3})
    call = with_script(command(config, corpus, tmp_path / "run", tmp_path), tmp_path, STOP_AT.format(until=6))
    subprocess.run(call, env=environment(), capture_output=True)
    assert RunFolder(tmp_path / "run").step == 6
    call = with_script(command(config, corpus, tmp_path / "run", tmp_path, world_size=2), tmp_path, HIDDEN)
    done = subprocess.run(call, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "rank 1 on" in done.stderr
    assert "which the main rank can (no such file)" in done.stderr
    assert "sjepa/train" not in done.stderr  # the launcher has a traceback, we have none
    assert RunFolder(tmp_path / "run").step == 6


def test_a_folder_that_is_not_shared_is_refused_before_training(corpus: Path, tmp_path: Path, micro: Make) -> None:
    call = with_script(command(plain(micro), corpus, tmp_path / "run", tmp_path, world_size=2), tmp_path, SCATTERED)
    done = subprocess.run(call, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "must be on a disk that all machines share" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_saves_once_and_continues(
    corpus: Path, tmp_path: Path, micro: Make, number: signal.Signals
) -> None:
    """Launcher, ranks and the ranks' loader workers all receive it, twice, as under a scheduler."""
    config = plain(micro, phase1={"steps": 400}, train={"checkpoint_every": 1000, "log_every": 50})
    run = tmp_path / "run"
    call = [*command(config, corpus, run, tmp_path, world_size=2), "--batches.cache", "none", "--batches.workers", "1"]
    process = subprocess.Popen(
        call, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (run / "metrics.jsonl").exists() or "train" not in (run / "metrics.jsonl").read_text():
        time.sleep(0.05)
    ranks = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    targets = [int(pid) for pid in ranks.split()] if number == signal.SIGUSR1 else [-process.pid]
    for _ in range(2):
        for target in targets:
            os.killpg(process.pid, number) if target < 0 else os.kill(target, number)
        time.sleep(0.02)
    output, errors = process.communicate(timeout=120)
    assert "stopping after this step" in errors
    assert "the same command continues" in output, errors
    assert "audio" not in errors.lower()
    stopped = RunFolder(run).step
    assert 0 < stopped < 400
    assert lines(run, "stopped") == [{"event": "stopped", "step": stopped}]


def test_a_rank_killed_under_torchrun_restarts_and_ends_as_if_nothing_had_happened(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = plain(micro, phase2={"steps": 60}, train={"checkpoint_every": 2})
    train(config, corpus, tmp_path / "whole", tmp_path, world_size=2)
    run = tmp_path / "killed"
    call = command(config, corpus, run, tmp_path, world_size=2)
    call.insert(call.index("--nproc-per-node"), "--max-restarts=5")
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(call, env=environment(), stdout=file, stderr=file)
    for after in (8, 20, 40):
        while RunFolder(run).step < after and process.poll() is None:
            time.sleep(0.02)
        ranks = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
        os.kill(int(ranks.split()[after % 2]), signal.SIGKILL)
    assert process.wait(timeout=300) == 0, output.read_text()
    assert lines(run) == lines(tmp_path / "whole")


def test_a_restart_ignores_what_earlier_processes_left_in_the_store() -> None:
    store = torch.distributed.HashStore()
    for name in ("greeting", "answer", "joined"):  # all three of a start whose rank 1 is gone
        store.set(f"{name}/1", "gone gone")
    with ThreadPoolExecutor(3) as pool:
        prefixes = list(pool.map(lambda rank: agree_on_prefix(store, rank, 3), (2, 0, 1)))
    assert len(set(prefixes)) == 1
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda rank: agree_on_prefix(store, rank, 3), (0, 1, 2))).isdisjoint(prefixes)


def test_two_agents_with_a_rendezvous_are_one_run(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = plain(micro)
    train(config, corpus, tmp_path / "one", tmp_path)
    port = 20_000 + (os.getpid() + 7) % 20_000
    rendezvous = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "test"]
    launch = ["-m", "torch.distributed.run", *rendezvous, "--rdzv-endpoint", f"localhost:{port}"]
    call = command(config, corpus, tmp_path / "two", tmp_path)
    call = [sys.executable, *launch, *call[1:]]
    agents = [subprocess.Popen(call, env=environment(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for agent in agents:
        _, errors = agent.communicate(timeout=180)
        assert agent.returncode == 0, errors
    assert_same_curve(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu1", "gpu1"), ("gpu[003-007,12],login", "gpu003"), ("a-[2,4]", "a-2"), ("n1,n2", "n1"), ("x[01-02]y", "x01y")],
)
def test_slurms_lists_of_hosts(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_tasks_of_srun_form_one_world() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "11", "SLURM_LOCALID": "3", "SLURM_JOB_ID": "123456"}
    step |= {"SLURM_STEP_NODELIST": "gpu[03-04]"}
    found = slurm_variables(step)
    assert found == {
        "RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "gpu03", "MASTER_PORT": "18456",
    }  # fmt: skip
    assert slurm_variables(step | {"RANK": "0"}) == {}  # torchrun inside a task
    assert slurm_variables({"SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}) == {}  # a batch script's own process
    assert slurm_variables({}) == {}
