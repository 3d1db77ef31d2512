"""Two commands on one folder: the second is refused, and leftovers of a killed command do no harm."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calls import sjepa
from processes import orphan

from sjepa.config import Config
from sjepa.data.index import open_index
from sjepa.errors import UserError
from sjepa.files import LOCK, atomic_file, atomic_folder, contents
from sjepa.locks import lock_folder, lock_new_folder
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import to_toml
from sjepa.train import loop
from sjepa.train.loop import pretrain


def test_a_folder_has_one_writer_who_loses_it_by_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with lock_folder(out):
        with pytest.raises(UserError, match="another process writes to"), lock_folder(out):
            pass
        assert not contents(out)
    assert not list(tmp_path.iterdir())  # it stayed empty
    program = f"""
import os, signal
from pathlib import Path
from sjepa.files import atomic_file, atomic_folder
from sjepa.locks import lock_folder
with lock_folder(Path({str(out)!r})), atomic_file(Path({str(out / "a.txt")!r})) as partial:
    partial.write_text("half")
    with atomic_folder(Path({str(out / "folder")!r})) as folder:
        (folder / "b.txt").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert len(list(out.iterdir())) == 3
    with lock_folder(out):
        assert [path.name for path in out.iterdir()] == [LOCK]


def test_a_worker_that_outlives_a_killed_command_holds_no_lock(tmp_path: Path) -> None:
    setup = "from pathlib import Path\nfrom sjepa.locks import lock_folder"
    worker = orphan(tmp_path, setup, held=f"lock_folder(Path({str(tmp_path)!r}))")
    try:
        os.kill(worker, 0)  # it is alive
        with lock_folder(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_run_that_another_process_changes_while_audio_is_read_keeps_its_settings(
    tmp_path: Path, corpus: Path, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = tmp_path / "run", loop.open_corpus
    assert pretrain(micro(), corpus, run, show=False, last_phase=1)

    def lengthen_meanwhile(*arguments: Any) -> Any:
        RunFolder(run).config_file.write_text(to_toml(micro(phase2={"steps": 60})))
        return read(*arguments)

    monkeypatch.setattr(loop, "open_corpus", lengthen_meanwhile)
    with pytest.raises(UserError, match="is a run with other settings"):
        pretrain(micro(), corpus, run, show=False)
    assert RunFolder(run).config().phases[1].steps == 60


def test_partial_files_of_two_writers_differ(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as first, atomic_file(tmp_path / "a") as second:
        first.write_text("one")
        second.write_text("two")
        assert first != second
    assert (tmp_path / "a").read_text() == "one"
    with atomic_file(tmp_path / ("ü" * 127)) as partial:  # 254 bytes, the longest that file systems take
        partial.write_text("long")


def test_a_folder_that_another_holds_below_is_not_swept(tmp_path: Path) -> None:
    below = tmp_path / "run" / "results"
    with lock_folder(below), atomic_file(below / "a.txt") as partial:
        partial.write_text("in progress")
        with lock_folder(tmp_path / "run"):
            assert partial.exists()


def test_a_new_folder_that_another_writes_below_is_not_swept(tmp_path: Path) -> None:
    new = tmp_path / "run" / "exported"
    with lock_new_folder(new), atomic_folder(new) as partial:
        (partial / "a.txt").write_text("in progress")
        leftover = partial.with_name(".other.0a1b2c3d.partial")
        leftover.mkdir()
        with lock_folder(tmp_path / "run"):
            assert not leftover.exists()
    assert (new / "a.txt").read_text() == "in progress"


def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock_folder(tmp_path / "out"):
        pass
    assert "no file locks (No locks available); let only one command" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with lock_folder(tmp_path / "out"):
        pass
    assert "no file locks (this system has none)" in capsys.readouterr().err


def test_a_lock_holds_on_a_disk_that_locks_only_files_open_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As NFS does."""
    lock = fcntl.flock

    def lock_like_nfs(handle: int, operation: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
            raise OSError(9, "Bad file descriptor")
        lock(handle, operation)

    monkeypatch.setattr("fcntl.flock", lock_like_nfs)
    with (
        lock_folder(tmp_path / "out"),
        pytest.raises(UserError, match="another process"),
        lock_folder(tmp_path / "out"),
    ):
        pass
    assert not capsys.readouterr().err


@pytest.fixture(scope="module")
def index(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / "index"
    assert sjepa("index", corpus, "--out", out)[0] == 0
    return out


def test_every_command_that_writes_a_folder_holds_it(
    corpus: Path, index: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, encoder = tmp_path / "out", finished_run / "encoder"
    names = sorted(path.name for path in corpus.glob("*.wav"))
    labels = {"text": "one", "phones": [[0.0, 0.5, "a"], [0.5, 1.0, "b"]]}
    rows = [{"path": name, "speaker": str(number % 3)} | labels for number, name in enumerate(names)]
    spoken = shutil.copytree(corpus, tmp_path / "spoken")
    (spoken / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = ("--data", spoken)
    calls = {
        "index": ("index", corpus, "--out", out),
        "shard": ("shard", index, "--out", out, "--workers", 1),
        "embed": ("embed", corpus, "--encoder", encoder, "--out", out),
        "probe": ("probe", *labelled, "--encoder", "mfcc", "--out", out),
        "units": ("units", *labelled, "--encoder", "mfcc", "--units", "kmeans", "--out", out),
        "analyze": ("analyze", "erank", finished_run, "--out", out),
        "figures": ("figures", finished_run, "--out", out),
        "cost": ("cost", "--encoder", "mfcc", "--out", out),
        "superb": ("superb", "asr", *labelled, "--encoder", "mfcc", "--lite", "--out", out),
        "demo": ("demo", "--out", out),
    }
    for call in calls.values():
        with lock_folder(out):
            status, output, _ = sjepa(*call)
        assert status == 2, output
        assert f"another process writes to {out}" in output
    with lock_new_folder(out):
        status, output, _ = sjepa("export", finished_run, out, "--to", "hf")
    assert status == 2
    assert f"another process writes {out}" in output
    with RunFolder(finished_run).lock(), pytest.raises(UserError, match="another process is training"):
        RunFolder(finished_run).lock().__enter__()


def test_shards_begun_with_other_settings_are_refused(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr("sjepa.data.shards.merge_parts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert sjepa("shard", index, "--out", out, "--workers", 1)[0] == 130
    status, output, _ = sjepa("shard", index, "--out", out, "--workers", 1, "--seed", 1)
    assert status == 2
    assert "holds an unfinished index with other settings" in output
    tar = next(out.glob("*.tar"))
    sound = tar.read_bytes()
    for damage in (sound[: len(sound) // 2], b"another shard" + sound[13:]):
        tar.write_bytes(damage)
        status, output, _ = sjepa("shard", index, "--out", out, "--workers", 1)
        assert status == 2
        assert "does not match" in output
    tar.write_bytes(sound)
    assert sjepa("shard", index, "--out", out, "--workers", 1)[0] == 0
    assert len(open_index(str(out))) == len(open_index(str(index)))


def test_a_kill_before_the_config_is_written_leaves_a_folder_that_the_same_command_takes(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = micro(phase1={"steps": 1}, phase2={"steps": 1}), tmp_path / "run"
    with monkeypatch.context() as patched:

        def fail(_: Config) -> str:
            raise KeyboardInterrupt  # where a kill would be

        patched.setattr("sjepa.settings_file.to_toml", fail)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, corpus, run, show=False)
    assert {path.name for path in run.iterdir()} == {"run.json", "README.txt"}
    assert pretrain(config, corpus, run, show=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and is not a run"):
        pretrain(config, corpus, tmp_path / "other", show=False)


@pytest.mark.parametrize("phases", [0, 1])
def test_a_run_that_another_process_trains_while_audio_is_read_keeps_its_checkpoints(
    phases: int, tmp_path: Path, corpus: Path, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process takes the lock only after it has read the audio, and knows the run as it was before."""
    run, config = tmp_path / "run", micro()
    if phases:
        assert pretrain(config, corpus, run, show=False, last_phase=phases)
    read = loop.open_corpus

    def train_meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(loop, "open_corpus", read)
        assert pretrain(config, corpus, run, show=False)
        return read(*arguments)

    monkeypatch.setattr(loop, "open_corpus", train_meanwhile)
    with pytest.raises(UserError, match=r"another process has trained .*run while this one was reading the audio"):
        pretrain(config, corpus, run, show=False)
    folder = RunFolder(run)
    assert folder.is_complete
    assert [line["step"] for line in folder.events() if line["event"] == "train"] == list(range(1, 13))


@pytest.mark.parametrize("out", ["held", "/proc/run"])
def test_a_busy_or_unwritable_run_folder_is_refused_before_audio_is_read(
    out: str, tmp_path: Path, corpus: Path, micro: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the audio was read")

    monkeypatch.setattr("sjepa.train.loop.open_corpus", fail)
    with (
        lock_folder(tmp_path / "held"),
        pytest.raises(UserError, match=r"another process is training|cannot write to"),
    ):
        pretrain(micro(), corpus, tmp_path / out, show=False)
