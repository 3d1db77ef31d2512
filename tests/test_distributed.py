"""Several ranks: the same data and results on any number of them, and nothing is lost if one dies."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import NO_DROPOUT, micro_config
from processes import free_port, start_ranks, start_torchrun
from small_runs import arguments, command, environment, lines, one_batch

from sjepa.config import Config
from sjepa.cuda_graphs import MOST_GRAPHS
from sjepa.data.opening import open_corpus
from sjepa.distributed import agree_on_prefix, first_host, run_on_all_ranks, slurm_variables
from sjepa.errors import OutageError
from sjepa.runs import checkpoint
from sjepa.runs.folder import RunFolder
from sjepa.train import agreement, loop
from sjepa.train.loop import pretrain
from sjepa.train.step import MOST_PATTERNS, PATTERNS, draw_kept_layers, train_step

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
        # Lines do not come with checkpoints: sums since the last line are saved, and those of all ranks.
        **{"train": {"masked_path": "both", "log_every": 2}, **sections},  # type: ignore[dict-item]
    )


def train_in_ranks(
    world_size: int,
    config: Config,
    corpus: Path,
    run: Path,
    folder: Path,
    before: Callable[[], None] | None = None,
) -> tuple[list[int], str]:
    """Train on several ranks that call `before` first. Returns their exit codes and output."""
    output = folder / f"output-{uuid.uuid4().hex}.txt"
    ranks = start_ranks(arguments(config, corpus, run, folder), output, world_size, before)
    return [rank.wait() for rank in ranks], "".join(rank.text for rank in ranks)


@pytest.fixture(scope="module")
def one_rank(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of the plain config in one process; tests only read it."""
    run = tmp_path_factory.mktemp("one") / "run"
    assert pretrain(plain(micro_config), corpus, run, show=False)
    return run


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
            n: run.optimizers[0].state[p]["exp_avg"] for n, p in run.model.named_parameters() if "k_proj.bias" not in n
        }
        found[parts] = moments | run.targets.codebook.state_dict() | {"loss": torch.tensor(run.meter.read()["loss"])}
    for parts in (3, 4):
        assert found[parts].keys() == found[1].keys()
        for name, value in found[1].items():
            scale = float(value.abs().max())
            torch.testing.assert_close(found[parts][name], value, rtol=0, atol=5e-4 * scale, msg=name)


@pytest.mark.parametrize("layers", [6, 12, 24])
def test_layerdrop_of_a_deep_encoder_draws_from_few_patterns(micro: Make, layers: int) -> None:
    """Each takes a CUDA graph per crop length; `paper` has eleven. Every layer is dropped at the given rate."""
    config = micro(encoder={"layers": layers, "layerdrop": 0.1})
    drawn = [draw_kept_layers(config, step) for step in range(3000)]
    assert len(set(drawn)) <= (MOST_PATTERNS if layers == 6 else PATTERNS)
    assert 11 * PATTERNS < MOST_GRAPHS
    assert np.mean(drawn, axis=0) == pytest.approx([0.9] * layers, abs=0.03)


def stop_at(step: int) -> None:
    """Make this process stop after a step."""
    agreement.StopAgreement.is_reached = lambda self: self.run.step == step  # type: ignore[method-assign]


def test_a_run_moves_between_numbers_of_ranks_and_stays_the_same(
    corpus: Path, tmp_path: Path, micro: Make, one_rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, then 2, then 4, then 1 rank, each stopped by a shorter schedule than it has, against 1 rank throughout."""
    config, moving = plain(micro), tmp_path / "moving"
    with monkeypatch.context() as patched:
        patched.setattr(agreement.StopAgreement, "is_reached", lambda self: self.run.step == 3)
        assert not pretrain(config, corpus, moving, show=False)
    for world_size, until in ((2, 6), (4, 9)):
        assert RunFolder(moving).step == until - 3
        codes, output = train_in_ranks(world_size, config, corpus, moving, tmp_path, partial(stop_at, until))
        assert codes == [0] * world_size, output
        assert RunFolder(moving).step == until
    assert pretrain(config, corpus, moving, show=False)
    assert RunFolder(moving).step == 12
    assert_same_curve(one_rank, moving)
    share = [[line["share"] for line in lines(run, "clusters")] for run in (one_rank, moving)]
    assert len(share[0]) == len(share[1])


def hide_from_rank_1(step: int) -> None:
    """Make the checkpoint of a step unreadable if this process is rank 1."""
    load = checkpoint.load

    def hidden(folder: Path) -> Any:
        if os.environ["RANK"] == "1" and folder.name.endswith(str(step)):
            raise checkpoint.DamagedError("no such file")
        return load(folder)

    checkpoint.load = hidden


def test_a_rank_that_cannot_load_the_checkpoint_stops_all_with_one_line(
    corpus: Path, tmp_path: Path, micro: Make, one_rank: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(one_rank, run)
    shutil.rmtree(RunFolder(run).checkpoint(12))
    newest = RunFolder(run).step
    codes, output = train_in_ranks(2, plain(micro), corpus, run, tmp_path, partial(hide_from_rank_1, newest))
    assert codes == [2, 2]
    assert output.count("rank 1 on") == output.count("sjepa:") == 1
    assert "which the main rank can (no such file)" in output
    assert "Traceback" not in output
    assert RunFolder(run).step == newest


def scatter(folder: Path) -> None:
    """Give rank 1 another working folder."""
    agreement.PATIENCE = 0.2
    if os.environ["RANK"] == "1":
        os.makedirs(folder)
        os.chdir(folder)


def test_a_folder_that_is_not_shared_is_refused_before_training(corpus: Path, tmp_path: Path, micro: Make) -> None:
    elsewhere = partial(scatter, tmp_path / "elsewhere")
    with contextlib.chdir(tmp_path):
        codes, output = train_in_ranks(2, plain(micro), corpus, Path("run"), tmp_path, elsewhere)
    assert codes == [2, 2]
    assert "must be on a disk that all machines share" in output
    assert not (tmp_path / "run").exists()


def fill_disk() -> None:
    """Let the first file that the main rank writes fail."""
    touch = Path.touch

    def full(path: Path) -> None:
        if path.name.startswith(".seen-"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        touch(path)

    Path.touch = full  # type: ignore[assignment, method-assign]


def test_a_full_disk_on_the_main_rank_ends_all_with_one_line(corpus: Path, tmp_path: Path, micro: Make) -> None:
    codes, output = train_in_ranks(2, plain(micro), corpus, tmp_path / "run", tmp_path, fill_disk)
    assert codes == [2, 2]
    assert output.count("sjepa: ") == output.count(": No space left on device") == 1
    assert "Traceback" not in output


def read_elsewhere(folder: Path) -> None:
    """Let rank 1 read other audio."""
    if os.environ["RANK"] == "1":
        loop.open_corpus = lambda data, *rest: open_corpus(str(folder), *rest)  # type: ignore[attr-defined]


def test_ranks_that_read_other_audio_stop_with_one_line(corpus: Path, tmp_path: Path, micro: Make) -> None:
    shutil.copytree(corpus, tmp_path / "audio")
    (tmp_path / "audio" / "00.wav").unlink()
    elsewhere = partial(read_elsewhere, tmp_path / "audio")
    codes, output = train_in_ranks(2, plain(micro), corpus, tmp_path / "run", tmp_path, elsewhere)
    assert codes == [2, 2]
    assert output.count("has read other audio than rank 0") == output.count("sjepa: rank 1 on") == 1
    assert "Traceback" not in output


def test_an_error_about_no_file_keeps_its_traceback() -> None:
    def fail() -> None:
        raise OSError("our bug")

    with pytest.raises(OSError, match="our bug"):
        run_on_all_ranks(fail)


def test_an_outage_stays_an_outage() -> None:
    def fail() -> None:
        raise OutageError("no answer")

    with pytest.raises(OutageError, match="no answer"):  # its exit code says that the command can continue
        run_on_all_ranks(fail)


def wait_for_line(run: Path, is_running: Callable[[], bool]) -> None:
    while not (run / "metrics.jsonl").exists() or "train" not in (run / "metrics.jsonl").read_text():
        assert is_running(), "the run ended before its first line"
        time.sleep(0.02)


def assert_stopped_once(run: Path, output: str) -> None:
    assert output.count("stopping after this step") == 1
    assert output.count("the same command continues") == 1
    assert "audio" not in output.lower().replace("hours of audio", "").replace("of the audio, a", "")
    stopped = RunFolder(run).step
    assert 0 < stopped < 400
    assert lines(run, "stopped") == [{"event": "stopped", "step": stopped}]


def test_a_signal_to_the_whole_group_saves_once_and_continues(corpus: Path, tmp_path: Path, micro: Make) -> None:
    """Launcher, ranks and the ranks' loader workers all receive SIGTERM, twice, as under a scheduler."""
    config = plain(micro, phase1={"steps": 400}, train={"checkpoint_every": 1000, "log_every": 5})
    run = tmp_path / "run"
    call = [*command(config, corpus, run, tmp_path, world_size=2), "--batches.cache", "none", "--batches.workers", "1"]
    process = subprocess.Popen(
        call, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for_line(run, lambda: process.poll() is None)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.02)
    output, errors = process.communicate(timeout=120)
    ours = [line for line in errors.splitlines() if "torch/distributed" not in line and "elastic" not in line.lower()]
    assert_stopped_once(run, output + "\n".join(line for line in ours if "sjepa" in line))


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_schedulers_warning_to_all_ranks_or_one_stops_all_after_the_same_step(
    corpus: Path, tmp_path: Path, micro: Make, ranks: tuple[int, ...]
) -> None:
    config = plain(micro, phase1={"steps": 400}, train={"checkpoint_every": 1000, "log_every": 5})
    run = tmp_path / "run"
    call = [*arguments(config, corpus, run, tmp_path), "--batches.cache", "none", "--batches.workers", "1"]
    processes = start_ranks(call, tmp_path / "output.txt", 2, launcher="srun")
    wait_for_line(run, lambda: all(process.is_running for process in processes))
    for rank in ranks * 2:
        processes[rank].send(signal.SIGUSR1)
        time.sleep(0.02)
    assert [process.wait() for process in processes] == [0, 0]  # launchers take other codes for failures
    assert json.loads(RunFolder(run).facts_file.read_text())["history"][0]["world_size"] == 2
    if 0 in ranks:
        assert_stopped_once(run, "".join(process.text for process in processes))
    assert lines(run, "stopped") == [{"event": "stopped", "step": RunFolder(run).step}]


def test_a_rank_killed_under_torchrun_restarts_and_ends_as_if_nothing_had_happened(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = plain(micro, phase2={"steps": 14}, train={"checkpoint_every": 2})
    codes, output = train_in_ranks(2, config, corpus, tmp_path / "whole", tmp_path)
    assert codes == [0, 0], output
    run = tmp_path / "killed"
    options = ["--nproc-per-node", "2", "--max-restarts", "5", "--master-port", str(free_port())]
    agent = start_torchrun(options, arguments(config, corpus, run, tmp_path), tmp_path / "output.txt")
    for restarts, after in enumerate((4, 9)):
        # Wait for the ranks of the last restart: a run that is already past `after` would lose the same ranks twice.
        while agent.is_running and (RunFolder(run).step < after or agent.text.count("Continuing ") < restarts):
            time.sleep(0.02)
        ranks = subprocess.run(["ps", "-o", "pid=", "--ppid", str(agent.pid)], capture_output=True, text=True).stdout
        os.kill(int(ranks.split()[after % 2]), signal.SIGKILL)
    assert agent.wait(300) == 0, agent.text
    assert agent.text.count("Continuing ") == 2  # twice from a checkpoint
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


def test_two_agents_with_a_rendezvous_are_one_run(corpus: Path, tmp_path: Path, micro: Make, one_rank: Path) -> None:
    config = plain(micro)
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "test"]
    options += ["--rdzv-endpoint", f"localhost:{free_port()}"]
    call = arguments(config, corpus, tmp_path / "two", tmp_path)
    agents = [start_torchrun(options, call, tmp_path / f"output{number}.txt") for number in range(2)]
    for agent in agents:
        assert agent.wait(600) == 0, agent.text
    assert_same_curve(one_rank, tmp_path / "two")


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
