"""No untrusted input causes a traceback or a hang, or changes files outside `--out`.

`benchmarks/fuzz.py` makes many more attempts of the same kinds.
"""

import time
from pathlib import Path

import hostile
import pytest
from hostile import ATTACKS, TooLongError, Workspace, attempt, time_limit
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sjepa.data import waiting

EXAMPLES = {"audio": 25, "lists": 30, "files": 40, "weights": 20, "commands": 40}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("fuzz") / "work")


@pytest.mark.parametrize("kind", ATTACKS)
def test_attacks_end_in_one_line(kind: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_WAIT", 0.0)

    @settings(
        max_examples=EXAMPLES[kind],
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        chosen = data.draw(ATTACKS[kind])
        assert not (wrong := attempt(chosen, workspace)), (chosen, wrong)

    attack()


def test_the_fuzzer_notices_what_it_looks_for(workspace: Workspace, tmp_path: Path) -> None:
    from calls import Ended
    from hostile import fault, touched

    assert fault(Ended(-1, "Traceback (most recent call last)"))
    assert fault(Ended(3, "sjepa: x"))
    assert fault(Ended(2, ""))
    assert not fault(Ended(2, "sjepa: one line"))
    before = workspace.snapshot(workspace.out)
    workspace.fresh()
    (workspace.scratch / "elsewhere.txt").write_text("x")
    assert "elsewhere.txt" in touched(before, workspace.snapshot(workspace.out))
    (workspace.scratch / "elsewhere.txt").unlink()


def test_the_time_limit_counts_cpu_time_and_finds_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin() -> None:
        while True:
            pass

    with time_limit(cpu_seconds=0.1, wall_seconds=60):
        time.sleep(0.3)  # uses no CPU
    with pytest.raises(TooLongError, match="CPU"), time_limit(cpu_seconds=0.05, wall_seconds=60):
        spin()
    with pytest.raises(TooLongError, match="clock"), time_limit(cpu_seconds=60, wall_seconds=0.1):
        time.sleep(60)
    monkeypatch.setattr(hostile, "IDLE", 0.0)
    with pytest.raises(TooLongError, match="CPU"), time_limit(cpu_seconds=0.2, wall_seconds=0.05):
        spin()  # slow, but at work
