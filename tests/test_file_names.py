"""Names of files and folders that are not UTF-8 work in every command, or are refused in one line."""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sjepa import cli
from sjepa.config import Config
from sjepa.errors import UserError
from sjepa.files import dump_json
from sjepa.settings_file import to_toml
from sjepa.train.loop import pretrain

BAD = os.fsdecode(b"\xff")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")


@pytest.fixture
def sjepa(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A command that prints to a stream as strict as a terminal's."""
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict") as stream:

        def run(*arguments: object) -> None:
            monkeypatch.setattr(sys, "stdout", stream)
            monkeypatch.setattr(sys, "stderr", io.StringIO())
            try:
                cli.main([str(argument) for argument in arguments])
            except SystemExit as ended:
                raise AssertionError(f"{arguments[0]} ended with {ended.code}") from ended
            finally:
                stream.flush()
                monkeypatch.undo()

        yield run


@pytest.fixture
def audio(corpus: Path, tmp_path: Path) -> Path:
    folder = tmp_path / f"audio{BAD}"
    folder.mkdir()
    for number, file in enumerate(sorted(corpus.glob("*.wav"))):
        shutil.copy(file, folder / f"{number}{BAD}.wav")
    return folder


def test_features_of_such_files_are_written(sjepa: Callable[..., None], audio: Path, finished_run: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    file, out = audio / f"0{BAD}.wav", audio.parent / f"features{BAD}"
    for kind in ("npz", "safetensors", "parquet"):
        sjepa("embed", file, "--encoder", finished_run, "--out", out / kind, "--format", kind)
    (written,) = (out / "parquet").glob("*.parquet")
    with written.open("rb") as opened:
        assert set(pyarrow.read_table(opened)["file"].to_pylist()) == {r"0\xff.wav"}
    sjepa("embed", file, "--live", "--encoder", finished_run, "--out", out / "live", "--format", "parquet")


def test_an_index_of_such_files_is_written(sjepa: Callable[..., None], audio: Path) -> None:
    sjepa("index", audio, "--out", audio.parent / f"index{BAD}")


def test_a_run_on_such_audio_is_analysed_reported_and_exported(
    sjepa: Callable[..., None], audio: Path, finished_run: Path, tmp_path: Path
) -> None:
    run, file, page = tmp_path / "run", audio / f"0{BAD}.wav", tmp_path / f"page{BAD}.html"
    sjepa("pretrain", "--preset", finished_run / "config.toml", "--data", audio, "--out", run)
    sjepa("analyze", "utterance", run, file)
    sjepa("analyze", "utterance", run, file)  # compares with the findings of the first call
    (found,) = (run / "analysis").glob("utterance-*.json")
    assert json.loads(found.read_text())["made_from"]["path"] == str(file)
    sjepa("report", run, "--data", audio, "--out", page)
    assert rb"audio\xff" in page.read_bytes()
    sjepa("export", run, tmp_path / "out", "--to", "hf")
    assert r"audio\xff" in (tmp_path / "out" / "README.md").read_text()


def test_folders_of_weights_need_a_name_that_safetensors_can_read(
    corpus: Path, finished_run: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    with pytest.raises(UserError, match=r"run\\xff is not a name in UTF-8"):
        pretrain(micro(), corpus, tmp_path / f"run{BAD}", show=False)
    with pytest.raises(UserError, match=r"out\\xff is not a name in UTF-8"):
        cli.dispatch(["export", str(finished_run), str(tmp_path / f"out{BAD}"), "--to", "hf"])
    assert not list(tmp_path.iterdir())


def test_json_restores_such_names() -> None:
    text = dump_json({"name": f"ü{BAD}"})
    assert "ü" in text
    assert json.loads(text.encode()) == {"name": f"ü{BAD}"}


def test_a_setting_with_such_a_name_is_refused_because_toml_has_no_such_text(micro: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match=r"augment\.noise .*\\xff"):
        to_toml(micro(augment={"noise": f"noise{BAD}"}))
