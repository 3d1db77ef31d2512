"""Progress lines: every part that is shown fits on the line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_runs import Make

from sjepa.progress import Bar, bar, fit_note, hide_bars, track
from sjepa.train import loop

NOTE = "loss 3.512  masked 5%  visible 7%  q 2.12 p 3.22 bits  9,123 s/s"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The last state of a bar, as a terminal of that width has it."""

    def written(description: str, total: int, note: str, width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        with bar(description, total, done=12_344) as progress:
            capsys.readouterr()  # its first state
            progress.advance(note=note)
        text = capsys.readouterr().err.rstrip("\n")
        assert all(len(row) <= width for row in text.split("\n"))
        return text

    return written


def test_hidden_bars_print_nothing_until_the_end_of_the_block(capsys: pytest.CaptureFixture[str]) -> None:
    with hide_bars():
        assert list(track("ab", "Hidden")) == ["a", "b"]
    assert list(track("ab", "Shown")) == ["a", "b"]
    assert "Hidden" not in (shown := capsys.readouterr().err)
    assert "Shown" in shown


def test_a_note_loses_whole_parts_from_its_end() -> None:
    kept = {fit_note(NOTE, room) for room in range(len(NOTE) + 3)}
    parts = NOTE.split("  ")
    assert kept == {"  ".join(parts[:number]) for number in range(len(parts) + 1)}
    assert all(len(fit_note(NOTE, room)) <= room for room in range(len(NOTE)))


def test_a_wide_character_takes_two_columns() -> None:
    assert fit_note("録音.wav", 8) == "録音.wav"
    assert fit_note("録音.wav", 7) == ""


@pytest.mark.parametrize(("width", "end"), [(80, "  visible 7%"), (100, "  visible 7%"), (160, "  9,123 s/s")])
def test_a_line_ends_with_the_last_part_that_has_room(width: int, end: str, line: Callable[..., str]) -> None:
    shown = line("Training", 200_000, NOTE, width).rstrip()
    assert "12345/200000" in shown
    assert shown.endswith(end)
    assert NOTE.startswith(shown[shown.index("loss") :])


def test_a_long_description_continues_on_the_next_line_and_no_number_is_cut(line: Callable[..., str]) -> None:
    name = "an encoder [of mine] with a name that is longer than most of the names that encoders have"
    first, *below = line(f"Features: {name}", 28_539, "2,312 s/s", 80).split("\n")
    assert "12345/28539 0:00:0" in first
    begin = first[: first.index("12345")].split()
    assert [*begin, *" ".join(below).split()] == ["Features:", *name.split()]


@pytest.mark.parametrize(("seconds", "lines"), [(-1.0, ["0/3", "1/3", "2/3", "3/3", "3/3"]), (600.0, ["0/3", "3/3"])])
def test_without_a_terminal_a_line_is_printed_at_once_and_then_now_and_then(
    seconds: float, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sjepa.progress.QUIET", seconds)
    with bar("Training", 3) as progress:
        for step in range(3):
            progress.advance(note=f"loss {step}")
    assert [row.split()[1] for row in capsys.readouterr().err.splitlines()] == lines


def test_the_time_left_is_estimated_from_two_steps_however_slow_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = 0.0
    monkeypatch.setattr("rich.console.monotonic", lambda: seconds)
    monkeypatch.setattr("sjepa.progress.QUIET", -1.0)
    with bar("Training", 100) as progress:
        for _ in range(3):
            seconds += 90.0
            progress.advance()
    left = [line.split()[-1] for line in capsys.readouterr().err.splitlines()]
    assert left == ["-:--:--", "-:--:--", "2:27:00", "2:25:30", "2:25:30"]


def test_work_of_an_earlier_call_does_not_count_for_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0
    monkeypatch.setattr("rich.console.monotonic", lambda: seconds)
    with bar("Writing shards", 100) as progress:
        for _ in range(3):
            progress.skip(20)
        for _ in range(3):
            seconds += 2.0
            progress.advance()
        assert progress.progress.tasks[0].time_remaining == 2 * 37


def test_the_fit_between_two_phases_does_not_change_the_time_left(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    bars: list[Bar] = []
    left: list[tuple[int, float | None]] = []

    def takes(duration: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def work(*arguments: Any) -> Any:
            nonlocal seconds
            seconds += duration
            return function(*arguments)

        return work

    @contextmanager
    def watched(*arguments: Any, **options: Any) -> Iterator[Bar]:
        with bar(*arguments, **options) as made:
            bars.append(made)
            yield made

    def record(run: Any, *_: Any) -> None:
        left.append((run.step, bars[0].progress.tasks[0].time_remaining))

    monkeypatch.setattr("rich.console.monotonic", lambda: seconds)
    monkeypatch.setattr(loop, "bar", watched)
    monkeypatch.setattr(loop, "begin_phase", takes(20.0, loop.begin_phase))
    monkeypatch.setattr(loop, "train_step", takes(1.0, loop.train_step))
    monkeypatch.setattr(loop, "log_interval", record)
    assert loop.pretrain(micro(), corpus, tmp_path / "run")
    # A phase has 6 steps of 1 s. After its first step nothing is known about the others.
    assert left == [(step, None if step in (1, 7) else 12 - step) for step in range(1, 13)]
    assert bars[0].progress.tasks[0].elapsed == 52
