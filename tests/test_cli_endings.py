"""How commands end: signals, errors of files, a lack of memory, errors of the GPU."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_cli import refused, sjepa

from sjepa import cli
from sjepa.data.storage import ALLOWED
from sjepa.files import write_whole


def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import torch.distributed\nraise KeyboardInterrupt\n")
    (tmp_path / "torch" / "distributed.py").write_text("")
    call = [sys.executable, "-m", "sjepa", "pretrain", "--preset", "tiny", "--out", "run"]
    done = subprocess.run(call, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (130, "sjepa: interrupted; the same command continues\n")


@pytest.mark.parametrize(
    ("call", "continues"),
    [
        ("superb asr", True),
        ("embed a.wav --encoder run", True),
        ("embed a.wav --encoder run --force", False),
        ("index audio", True),
        ("shard corpus", True),
        ("demo", True),
        ("--allow-protocols gs index audio", True),
        ("--allow-protocols=gs probe", False),
        ("probe", False),
        ("", False),
    ],
)
def test_ctrl_c_prints_where_the_same_command_continues(
    call: str, continues: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv(ALLOWED, "")
    assert ending(interrupted, call, monkeypatch) == 130
    hint = "the same command continues" if continues else "run the same command again"
    assert capsys.readouterr().err == f"sjepa: interrupted; {hint}\n"


def ending(work: Callable[[list[str]], None], call: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit status of a call whose work is replaced."""
    monkeypatch.setattr(cli, "dispatch", work)
    monkeypatch.setattr(sys, "argv", ["sjepa", *call.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("call", ["--allow-protocols gs index audio", "probe", "sweep compare.toml --task 0"])
def test_every_command_ends_in_good_order_after_a_signal(
    call: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: list[str]) -> None:
        os.kill(os.getpid(), number)
        pytest.fail("the signal is not handled")

    monkeypatch.setenv(ALLOWED, "")
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        assert ending(stopped, call, monkeypatch) == 130
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_a_stopped_command_waits_for_its_work_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, other programs that share the GPU may fail."""

    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    waits: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("waited"))
    assert ending(interrupted, "embed a.wav", monkeypatch) == 130
    assert waits == ["waited"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/root/run"), "/root/run: Permission denied"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "a.partial", None, "a"), "a: Is a directory"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_errors_of_the_file_system_are_one_line(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: list[str]) -> None:
        raise error

    assert ending(fails, "report run", monkeypatch) == 2
    assert capsys.readouterr().err == f"sjepa: {line}\n"


def test_a_file_that_cannot_be_written_is_named_as_the_user_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "nowhere" / "report.html"
    assert ending(lambda _: write_whole(page, "text"), "report run", monkeypatch) == 2
    assert capsys.readouterr().err == f"sjepa: {page}: No such file or directory\n"
    page = tmp_path / "report.html"
    page.mkdir()  # the temporary file is written, but cannot be moved
    assert ending(lambda _: write_whole(page, "text"), "report run", monkeypatch) == 2
    assert capsys.readouterr().err == f"sjepa: {page}: Is a directory\n"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_lack_of_memory_names_the_options_that_need_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "dispatch", fail)
    refused(sjepa("pretrain"), "not enough memory: try --train.accumulate 4")
    refused(sjepa("embed"), "not enough memory: lower --batch-seconds or --window.seconds")
    monkeypatch.setenv(ALLOWED, "")
    refused(sjepa("--allow-protocols", "gs", "embed"), "not enough memory: lower --batch-seconds")
    refused(sjepa("units"), "not enough memory: choose smaller sizes")


def test_an_error_of_the_gpu_is_one_line() -> None:
    """In a separate process, because it ends without freeing anything."""
    code = """
import sys, torch
from sjepa import cli
def fail(arguments):
    print("Phase 1")
    kind = getattr(torch, sys.argv[3], RuntimeError)
    raise kind(sys.argv[2] + "\\nCUDA kernel errors might be asynchronously reported")
cli.dispatch = fail
cli.main([sys.argv[1]])
"""

    def run(command: str, error: str, kind: str = "AcceleratorError") -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, command, error, kind], capture_output=True, text=True)

    done = run("pretrain", "CUDA error: unspecified launch failure")
    assert (done.returncode, done.stdout) == (cli.TEMPORARY, "Phase 1\n")
    assert done.stderr == "sjepa: the GPU reported an error: unspecified launch failure; the same command continues\n"
    refused(run("pretrain", "CUDA error: out of memory"), "not enough memory: try --train.accumulate 4")
    done = run("probe", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "RuntimeError")
    line = "sjepa: the GPU reported an error: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED; run the same command again\n"
    assert (done.returncode, done.stderr) == (cli.TEMPORARY, line)


LEAVING = """
import sys
import torch.distributed as dist
from sjepa import cli, distributed
from sjepa.errors import UserError
def fail(arguments):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if arguments:
        raise {"refused": UserError, "bug": KeyError}[arguments[0]]("lost")
def wait_for_graphs():
    print("left in good order")
    sys.exit("after an error" if sys.argv[1:] else 0)
cli.dispatch, dist.destroy_process_group = fail, wait_for_graphs
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize(("how", "code", "words"), [("", 0, ""), ("refused", 2, "sjepa: lost"), ("bug", 1, "KeyError")])
def test_a_rank_with_an_error_does_not_wait_for_the_process_group(how: str, code: int, words: str) -> None:
    """NCCL waits for CUDA graphs that the error keeps, and other ranks may wait for this one."""
    call = [sys.executable, "-c", LEAVING, *how.split()]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ("" if how else "left in good order\n")


def test_an_error_that_names_no_file_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: list[str]) -> None:
        raise OSError("a fault of ours")

    monkeypatch.setattr(cli, "dispatch", fails)
    with pytest.raises(OSError, match="a fault of ours"):
        cli.main()
