"""Signals at any moment: an immediate line, everything saved, the documented exit code, and nothing lost."""

import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import Command, free_port, start_ranks, start_torchrun
from small_runs import arguments, command, environment, lines

from sjepa.config import Config
from sjepa.data.corpus import Corpus
from sjepa.data.layouts.manifest import parquet_lines
from sjepa.data.storage import ByteRange, fetch
from sjepa.runs.folder import RunFolder
from sjepa.stopping import StoppedError, interrupt_on_signals, nothing_unsaved, stop_requests
from sjepa.train.loop import pretrain

Make = Callable[..., Config]


def test_signals_ask_for_a_stop_and_only_a_second_ctrl_c_ends_at_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stop_requests() as request:
        assert not request
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):  # a launcher repeats them
            os.kill(os.getpid(), number)
            assert request
        monkeypatch.setattr("sjepa.stopping.SAME", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert capfd.readouterr().err.count("SIGTERM: stopping after this step") == 1


def test_reading_the_audio_stops_at_the_first_signal(
    corpus: Path, tmp_path: Path, micro: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, decoded = Corpus.read, []

    def interrupt_first(self: Corpus, utterance: int) -> Any:
        decoded.append(utterance)
        if len(decoded) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # other utterances wait for this one
        return read(self, utterance)

    monkeypatch.setattr(Corpus, "read", interrupt_first)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert not pretrain(micro(), corpus, tmp_path / "run", show=False)
    assert len(decoded) <= 2
    output = capfd.readouterr()
    assert "sjepa: SIGINT: stopped" in output.err
    assert "Stopped at step 0 of 12; the same command continues" in output.out


def test_nothing_is_unsaved_until_the_outer_block_ends() -> None:
    with stop_requests() as request:
        with nothing_unsaved():
            with nothing_unsaved():
                assert not request.unsaved
            with pytest.raises(StoppedError):
                signal.raise_signal(signal.SIGTERM)
        assert request.unsaved


@pytest.mark.parametrize(
    ("place", "read"),
    [
        ("sjepa.data.layouts.manifest.import_arrow", lambda: list(parquet_lines("list.parquet"))),
        ("sjepa.data.storage.open_filesystem", lambda: fetch(ByteRange("https://localhost/a.wav"))),
    ],
)
def test_handlers_of_all_errors_do_not_hide_a_stop(
    place: str, read: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    reader = SimpleNamespace(ParquetFile=interrupted, cat_file=interrupted)
    monkeypatch.setattr(place, lambda *_: (reader, "a.wav") if "storage" in place else reader)
    with stop_requests(), nothing_unsaved(), pytest.raises(StoppedError):
        read()


def test_one_of_several_ranks_exits_so_that_the_launcher_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(os, "_exit", sys.exit)
    with stop_requests(), pytest.raises(SystemExit, match="130"), nothing_unsaved():
        signal.raise_signal(signal.SIGTERM)
    with stop_requests():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit, match="130"), nothing_unsaved():
            pass


def test_sigterm_interrupts_once_unless_other_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupt_on_signals():
        pass
    assert signal.getsignal(signal.SIGTERM) is before
    try:
        with pytest.raises(KeyboardInterrupt), interrupt_on_signals():
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # the process is about to exit
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with interrupt_on_signals():
        assert signal.getsignal(signal.SIGTERM) is before


class Interruption:
    """Sends signals to this process when a function is called for the n-th time, then lets it work."""

    def __init__(self, function: Callable[..., Any], numbers: list[signal.Signals], call: int):
        self.function, self.numbers, self.left = function, numbers, call

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            for number in self.numbers:
                os.kill(os.getpid(), number)
        return self.function(*arguments, **options)


REPEATED = [signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]


@pytest.mark.parametrize(
    ("place", "call", "numbers", "stopped_at"),
    [
        ("sjepa.train.loop.prepare", 1, [signal.SIGTERM], 0),  # start-up
        ("sjepa.train.loop.open_corpus", 1, [signal.SIGUSR1], 0),
        ("sjepa.train.boundary.autocast", 1, REPEATED, 0),  # frames of phase 1
        ("sjepa.train.loop.begin_phase", 2, [signal.SIGINT], 6),  # the boundary
        ("sjepa.train.boundary.autocast", 4, REPEATED, 6),  # frames of phase 2
        ("sjepa.targets.targets.Targets.fit", 2, [signal.SIGTERM], 7),
        ("sjepa.train.loop.train_step", 1, REPEATED, 1),  # the first step, which compiles on a GPU
        ("sjepa.train.loop.Run.save", 1, REPEATED, 4),  # while step 3 is being saved
    ],
)
def test_a_signal_at_any_moment_is_answered_and_the_run_continues_as_if_there_had_been_none(
    corpus: Path,
    tmp_path: Path,
    micro: Make,
    finished_run: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    call: int,
    numbers: list[signal.Signals],
    stopped_at: int,
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        owner, name = place.rsplit(".", 1)
        function = getattr(pkgutil.resolve_name(owner), name)
        interruption = Interruption(function, numbers, call)

        def interrupted(*arguments: Any, **options: Any) -> Any:
            return interruption(*arguments, **options)

        patched.setattr(place, interrupted)
        assert not pretrain(micro(), corpus, run, show=False)
    output = capfd.readouterr()
    assert output.err.count(f"sjepa: {numbers[0].name}: stop") == output.err.count("stop") == 1
    assert f"Stopped at step {stopped_at} of 12; the same command continues" in output.out
    assert RunFolder(run).step == stopped_at
    assert pretrain(micro(), corpus, run, show=False)
    assert lines(run) == lines(finished_run)


def test_signals_again_and_again_from_the_start_end_a_command_in_good_order(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    call = command(micro(), corpus, tmp_path / "run", tmp_path)
    process = subprocess.Popen(call, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    caught = 1 << (signal.SIGUSR1 - 1)
    status = Path(f"/proc/{process.pid}/status")
    while not int(status.read_text().split("SigCgt:")[1].split()[0], 16) & caught:  # until Python has started
        time.sleep(0.005)
    while process.poll() is None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            process.send_signal(number)
        time.sleep(0.01)
    output, errors = process.communicate()
    assert process.returncode == 130, errors
    assert errors.count("stopping before the next step") == errors.count("sjepa:") == 1
    assert "the same command continues" in output


COMPILING = """
import functools, os, signal
from sjepa.torch_private import start_compile_workers
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
    start_compile_workers()
    from torch._inductor.async_compile import AsyncCompile
    pool = AsyncCompile.process_pool()
    pool.submit(functools.partial(os.killpg, os.getpgid(0), signal.SIGTERM)).result()
    print("compiled", pool.submit(os.getpid).result() != os.getpid())
"""


def test_a_signal_to_all_processes_of_a_job_leaves_the_compiler_working() -> None:
    """Otherwise a run would not reach the end of its first step, and not stop."""
    call = [sys.executable, "-c", COMPILING]
    done = subprocess.run(call, start_new_session=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["asked to stop", "compiled True"], done.stderr


def wait_for(command: Command, words: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while words not in command.text:
        assert command.is_running, command.text
        assert time.monotonic() < until, command.text
        time.sleep(0.02)


def test_a_rank_that_waits_for_the_others_ends_at_once(corpus: Path, tmp_path: Path, micro: Make) -> None:
    """It waits in code that is not Python's, where Python handles no signals."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    alone["MASTER_PORT"] = str(free_port())
    waiting = Command(arguments(micro(), corpus, tmp_path / "run", tmp_path), tmp_path / "log", alone)
    while not is_listening(int(alone["MASTER_PORT"])):
        time.sleep(0.05)
    waiting.send(signal.SIGTERM)
    assert waiting.wait(20) == 130
    assert "sjepa: SIGTERM: stopped\n" in waiting.text


def is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_signal_is_answered_while_another_rank_hangs(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = micro(phase1={"steps": 400}, phase2={"steps": 10}, train={"checkpoint_every": 1000, "log_every": 5})
    run = tmp_path / "run"
    ranks = start_ranks(arguments(config, corpus, run, tmp_path), tmp_path / "log", 2)
    while not (run / "metrics.jsonl").exists() or '"train"' not in (run / "metrics.jsonl").read_text():
        assert all(rank.is_running for rank in ranks), ranks[0].text
        time.sleep(0.05)
    ranks[1].send(signal.SIGSTOP)
    time.sleep(0.5)  # rank 0 reaches a sum over both
    ranks[0].send(signal.SIGTERM)
    wait_for(ranks[0], "sjepa: SIGTERM: stopping after this step", 10)
    ranks[1].send(signal.SIGCONT)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].text
    assert f"Stopped at step {RunFolder(run).step} of 410; the same command continues" in ranks[0].text


def test_torchrun_passes_on_slurms_warning_with_the_documented_option(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    from torch.distributed.run import get_args_parser

    documented = "--signals-to-handle SIGTERM,SIGINT,SIGUSR1"
    assert documented in (Path(__file__).parents[1] / "docs" / "cluster.md").read_text()
    option, signals = documented.split()
    if option not in get_args_parser().format_help():
        pytest.skip("this torchrun is too old for the option")
    config = micro(phase1={"steps": 4000}, phase2={"steps": 1}, train={"checkpoint_every": 10_000, "log_every": 5})
    run = tmp_path / "run"
    options = ["--nproc-per-node", "2", "--master-port", str(free_port()), option, signals]
    options += ["--shutdown-timeout", "5"]  # ranks that were forked do not exit by themselves, unlike started ones
    agent = start_torchrun(options, arguments(config, corpus, run, tmp_path), tmp_path / "log")
    while not (run / "metrics.jsonl").exists() or '"train"' not in (run / "metrics.jsonl").read_text():
        assert agent.is_running, agent.text
        time.sleep(0.05)
    agent.send(signal.SIGUSR1)
    agent.wait(60)
    step = RunFolder(run).step
    assert step > 0
    assert f"Stopped at step {step:,} of 4,001; the same command continues" in agent.text
