"""The live view: what it shows, from metrics.jsonl alone, even while the file is being written."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pages import make_events, make_run
from rich.console import Console

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.watch import BLOCKS, Tail, progress, sparkline, view


def render_status(run: Path, total: int = 1000, age: float = 3.0) -> str:
    console = Console(width=220, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(run, Tail(run / "metrics.jsonl").read(), total, age))
    return console.export_text()


def test_the_last_line_is_shown(tmp_path: Path) -> None:
    events = make_events(400)
    run = make_run(tmp_path / "run", events)
    text, last = render_status(run), events[-1]
    assert "step 400 of 1,000 (40%), phase 1, pass 5 over the corpus" in text
    assert "about 120 s left" not in text  # 600 steps at 20 in 4 s are 2 minutes
    assert "about 2 min left; last line 3 s ago" in text
    assert f"{last['loss']:.3f}" in text
    assert f"{last['accuracy_masked']:.1%}" in text
    layers = [event for event in events if event["event"] == "layers"][-1]
    assert f"* layer 2  {layers['smoothed'][2]:.1f}" in text


def test_metrics_alone_are_enough(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_events(400))
    (run / "config.toml").unlink()
    (run / "run.json").unlink()
    assert "step 400, phase 1" in render_status(run, total=0)


def test_alarms_and_long_silence_are_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_events(760))
    assert "step 740: 740 of 100 components are dead" in render_status(run)
    assert "step 720" not in render_status(run)  # the same, earlier
    assert "has it stopped?" in render_status(run, age=600.0)
    assert "has it stopped?" not in render_status(run, age=30.0)
    assert "complete" in render_status(make_run(tmp_path / "done", make_events()))


def test_a_run_that_was_asked_to_stop_is_shown_as_stopped(tmp_path: Path) -> None:
    text = render_status(make_run(tmp_path / "run", [*make_events(400), {"event": "stopped", "step": 412}]), age=6000.0)
    assert "step 412 of 1,000 (41%), phase 1, pass 5 over the corpus; stopped, the same command continues" in text


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    assert f"not a run yet; waiting for `sjepa pretrain --out {tmp_path}`" in render_status(tmp_path)
    (tmp_path / "config.toml").touch()
    assert "waiting for metrics.jsonl" in render_status(tmp_path)
    assert "first line follows" in render_status(make_run(tmp_path / "run", make_events(0)))


def test_sparklines_go_from_the_lowest_to_the_highest_and_show_gaps() -> None:
    assert sparkline([0.0, None, 7.0]) == BLOCKS[0] + " " + BLOCKS[-1]
    assert sparkline([5.0, 5.0]) == BLOCKS[0] * 2
    assert sparkline([None]) == ""
    assert len(sparkline([float(i) for i in range(1000)])) == 40


def test_the_time_left_is_not_known_from_one_line() -> None:
    line = [event for event in make_events(20) if event["event"] == "train"]
    assert "time left not known yet" in progress(line, 1000, 0.0)


def test_a_growing_file_is_followed_and_what_is_taken_back_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []

    def line(step: int, loss: float) -> str:
        return json.dumps({"event": "train", "step": step, "loss": loss}) + "\n"

    path.write_text(line(1, 5.0) + line(2, 4.0) + '{"event": "tr')
    assert [event["step"] for event in tail.read()] == [1, 2]
    path.write_text(line(1, 5.0) + line(2, 4.0) + line(3, 3.0))
    assert [event["step"] for event in tail.read()] == [1, 2, 3]
    # A run that continues from a checkpoint cuts the log back and writes on; the file may be longer again by now.
    path.write_text(line(1, 5.0) + line(2, 4.5) + line(3, 3.5) + line(4, 2.5))
    assert [event["loss"] for event in tail.read()] == [5.0, 4.5, 3.5, 2.5]
    path.unlink()
    assert tail.read() == []


def test_the_command_waits_for_a_run_and_shows_it_until_it_is_complete(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    import os

    events = make_events()
    run = tmp_path / "run"
    ours, theirs = pty.openpty()
    call = [sys.executable, "-m", "sjepa", "watch", str(run), "--every", "0.1"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    process = subprocess.Popen(call, stdout=theirs, stderr=theirs, env=environment)
    seen = bytearray()

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                seen.extend(piece)
        except OSError:  # the terminal is closed
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def until(words: bytes) -> None:
        deadline = time.monotonic() + 30
        while words not in seen and time.monotonic() < deadline:
            time.sleep(0.05)
        assert words in seen

    until(b"waiting for it; Ctrl-C stops waiting")
    make_run(run, events[:20])
    until(b"of 1,000")
    assert seen.count(b"waiting for it") == 1
    assert process.poll() is None  # it goes on watching
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events[20:])
    assert process.wait(30) == 0
    os.close(theirs)
    reader.join(5)
    assert b"complete" in seen


def test_once_and_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["watch", str(make_run(tmp_path / "run", make_events(100))), "--once"])
    assert "step 100 of 1,000" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UserError, match="there is no run"):
        dispatch(["watch", str(tmp_path / "nowhere"), "--once"])
    with pytest.raises(UserError, match=rf"is not a run: it has no config\.toml; did you mean {tmp_path / 'run'}\?"):
        dispatch(["watch", str(tmp_path)])
    (tmp_path / "words").write_text("words")
    with pytest.raises(UserError, match="is a file: give the folder"):
        dispatch(["watch", str(tmp_path / "words")])
    with pytest.raises(UserError, match=r"between 0\.01 and 86,400 seconds"):
        dispatch(["watch", str(tmp_path), "--every", "0"])
