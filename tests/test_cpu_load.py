"""A busy machine: how many cores other programs use, and what a command says about it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sjepa import cli, cpu_load, device
from sjepa.device import explain_busy_cpu

# Ticks of a core: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
BEFORE = """cpu  100 0 100 800 0 0 0 0 0 0
cpu0 50 0 50 400 0 0 0 0 0 0
cpu1 50 0 50 400 0 0 0 0 0 0
cpu2 50 0 50 400 0 0 0 0 0 0
intr 1 2 3
"""
# In ten ticks, core 0 is never idle, core 1 is idle or waits for a disk for eight, and core 2 is of no interest.
AFTER = """cpu  120 5 105 818 2 0 0 0 0 0
cpu0 55 2 53 400 0 0 0 0 0 0
cpu1 51 0 51 406 2 0 0 0 0 0
cpu2 60 0 50 400 0 0 0 0 0 0
intr 4 5 6
"""


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    device.explain_busy_cpu.cache_clear()
    yield
    torch.set_num_threads(before)
    device.explain_busy_cpu.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, used: float, cores: int = 2) -> None:
    monkeypatch.setattr(device, "cores_in_use", lambda: used)
    monkeypatch.setattr(device, "available_cores", lambda: set(range(cores)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds on the wall and of our own CPU time, which a test sets. No earlier reading counts."""
    seconds = {"wall": 100.0, "own": 7.0}
    monkeypatch.setattr(cpu_load, "_start", None)
    monkeypatch.setattr(cpu_load.time, "monotonic", lambda: seconds["wall"])
    monkeypatch.setattr(cpu_load.os, "times", lambda: (seconds["own"], 0.0, 0.0, 0.0, seconds["wall"]))
    return seconds


@pytest.fixture
def statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stat"
    path.write_text(BEFORE)
    monkeypatch.setattr(cpu_load, "STATISTICS", path)
    monkeypatch.setattr(cpu_load, "available_cores", lambda: {0, 1})
    return path


def test_cores_in_use_are_the_share_of_ticks_that_were_not_idle(statistics: Path, clock: dict[str, float]) -> None:
    cpu_load.start_measuring()
    statistics.write_text(AFTER)
    clock["wall"] += 0.5
    assert cpu_load.cores_in_use() == pytest.approx(1.0 + 0.2)


def test_our_own_work_is_not_that_of_other_programs(statistics: Path, clock: dict[str, float]) -> None:
    cpu_load.start_measuring()
    statistics.write_text(AFTER)
    clock["wall"] += 0.5
    clock["own"] += 0.4  # 0.8 of a core
    assert cpu_load.cores_in_use() == pytest.approx(0.4)
    clock["own"] += 1.0  # ticks are rounded
    assert cpu_load.cores_in_use() == 0


def test_a_time_of_a_few_ticks_tells_nothing(statistics: Path, clock: dict[str, float]) -> None:
    assert cpu_load.cores_in_use() == 0  # nothing was started
    cpu_load.start_measuring()
    statistics.write_text(AFTER)
    clock["wall"] += 0.1
    assert cpu_load.cores_in_use() == 0


def test_where_the_system_counts_no_ticks_no_core_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: dict[str, float]
) -> None:
    statistics = tmp_path / "stat"
    monkeypatch.setattr(cpu_load, "STATISTICS", statistics)
    cpu_load.start_measuring()
    clock["wall"] += 0.5
    assert cpu_load.cores_in_use() == 0
    statistics.write_text(f"cpu0 {'0 ' * 10}\n")  # some sandboxes
    monkeypatch.setattr(cpu_load, "available_cores", lambda: {0})
    cpu_load.start_measuring()
    clock["wall"] += 0.5
    assert cpu_load.cores_in_use() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/stat")
def test_a_busy_program_counts_as_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_load, "_start", None)
    core = min(cpu_load.available_cores())
    busy = f"import os; os.sched_setaffinity(0, {{{core}}}); print('busy', flush=True)\nwhile True: pass"
    program = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE)
    try:
        assert program.stdout
        assert program.stdout.readline() == b"busy\n"
        cpu_load.start_measuring()
        time.sleep(2 * cpu_load.SHORTEST)
        assert cpu_load.cores_in_use() > 0.8
    finally:
        program.kill()
        program.wait()


@pytest.mark.usefixtures("two_threads")
def test_a_busy_cpu_is_reported_once_with_the_number_of_threads_that_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, used=0.9)
    for _ in range(2):
        explain_busy_cpu()
    said = capsys.readouterr().err
    assert said.count("Other programs use 0.9 of 2 cores") == 1
    assert "OMP_NUM_THREADS=1" in said


def test_a_command_measures_from_its_start_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_load, "_start", None)
    started: list[cpu_load.Reading | None] = []
    monkeypatch.setattr(cli, "dispatch", lambda arguments: started.append(cpu_load._start))
    cli.main(["runs"])
    assert (started[0] is not None) == os.access(cpu_load.STATISTICS, os.R_OK)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    cpu_load.cores_in_use()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("used", "cores"), [(0.1, 2), (1.0, 4)])
def test_a_cpu_with_enough_free_cores_is_not_reported(
    used: float, cores: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, used, cores)
    explain_busy_cpu()
    assert capsys.readouterr().err == ""
