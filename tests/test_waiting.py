"""Waiting for a server: the same pauses and the same line, whichever work waits."""

from collections.abc import Callable

import pytest

from sjepa.data import outages, storage, waiting
from sjepa.data.storage import ByteRange, UnreachableError
from sjepa.data.waiting import OUTAGE, Wait
from sjepa.errors import OutageError

URL = "https://host/a.tar"


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Broken:
    """A file system whose server never answers. It notes the time of each try."""

    def __init__(self, clock: Clock):
        self.clock, self.tries = clock, list[float]()

    def cat_file(self, path: str) -> bytes:
        self.tries.append(round(self.clock.now, 1))
        raise ConnectionError("refused")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


@pytest.fixture
def broken(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Broken:
    system = Broken(clock)
    monkeypatch.setattr(storage, "open_filesystem", lambda url: (system, url))
    monkeypatch.setattr(storage, "failing_urls", set())
    return system


def test_pauses_grow_and_end_with_the_patience(clock: Clock) -> None:
    lines: list[str] = []
    wait = Wait("host", 3, 25.0, report=lines.append)
    times = [clock.now]
    while wait.try_again("refused"):
        times.append(round(clock.now, 1))
    assert times == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5]
    assert lines == ["host: no answer (refused); trying again for up to 0.416667 minutes"]


def test_a_server_that_answers_wrongly_gets_only_the_first_tries(clock: Clock) -> None:
    wait = Wait("host", 3, OUTAGE)
    assert [wait.try_again("short", answered=True) for _ in range(3)] == [True, True, False]


def test_a_stop_ends_a_pause(clock: Clock) -> None:
    wait = Wait("host", 3, OUTAGE, is_stopped=lambda: clock.now >= 0.3)
    assert wait.try_again("refused")
    assert clock.now == pytest.approx(0.3)
    assert not wait.try_again("refused")


def waits_in_training() -> None:
    with pytest.raises(UnreachableError, match=r"a\.tar: cannot be read after several tries"):
        storage.fetch(ByteRange(URL), OUTAGE, report=lambda line: outages.say(line, aside=True))


def waits_in_an_index() -> None:
    with pytest.raises(OutageError, match=r"a\.tar: cannot be read after several tries"):
        outages.wait_for_server([ByteRange(URL)])


@pytest.mark.parametrize("work", [waits_in_training, waits_in_an_index])
def test_all_work_waits_alike(work: Callable[[], None], broken: Broken, capsys: pytest.CaptureFixture[str]) -> None:
    work()
    assert broken.tries[:5] == [0.0, 0.5, 1.5, 3.5, 7.5]
    assert OUTAGE <= broken.tries[-1] < OUTAGE + waiting.LONGEST_WAIT
    assert capsys.readouterr().err.count("no answer (") == 1
    asked = len(broken.tries)
    with pytest.raises(UnreachableError, match="cannot be read after several tries"):
        storage.fetch(ByteRange(URL), OUTAGE)
    assert len(broken.tries) == asked + 1  # a URL that is known to fail
