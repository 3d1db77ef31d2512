"""Options of `sjepa superb` that are refused in one line, and unusual ones that work."""

import json
import re
from pathlib import Path

import pytest
import superb_corpora as corpora

from sjepa.cli import dispatch
from sjepa.errors import UserError

pytest.importorskip("espeakng_loader")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lr", "0"], "--lr 0: a learning rate is a finite number above 0"),
        (["--lr=-1"], "--lr -1: a learning rate is a finite number above 0"),
        (["--lr", "nan"], "--lr nan: a learning rate is a finite number above 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["superb", "sid", "--encoder", "mfcc", "--data", str(tmp_path), "--lite", *options])


def test_results_do_not_go_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match="file is a file: give a folder"):
        dispatch(["superb", "sid", "--encoder", "mfcc", "--data", str(tmp_path), "--lite", "--out", str(file)])


def test_a_date_is_a_seed_and_a_second_call_reports_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = corpora.voxceleb(tmp_path / "vox", speakers=2), tmp_path / "out"
    command = ["superb", "sid", "--encoder", "mfcc", "--data", str(data), "--lite", "--steps", "2", "--out", str(out)]
    dispatch([*command, "--seed", "20240101"])
    printed = capsys.readouterr()
    first = printed.out
    assert re.search(
        r"^This runs on a CPU: \d+ seconds of audio to encode, 2 head steps to train\. Large tasks", printed.err, re.M
    )
    written = (out / "results.json").stat().st_mtime_ns
    dispatch([*command, "--seed", "20240101"])
    printed = capsys.readouterr()
    second = printed.out
    assert "nothing to do" in second
    assert "to encode" not in printed.err
    assert first.splitlines()[-3:] == second.splitlines()[-3:]
    assert (out / "results.json").stat().st_mtime_ns == written
    assert json.loads((out / "results.json").read_text())["seed"] == 20240101


def test_each_choice_of_learning_rates_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = corpora.voxceleb(tmp_path / "vox", speakers=2)
    command = ["superb", "sid", "--encoder", "mfcc", "--data", str(data), "--lite", "--steps", "1", "--device", "cpu"]
    for rates in ([], ["--lr", "2e-3"], ["--sweep"]):
        dispatch([*command, *rates])
    folders = {file.parent.name for file in tmp_path.glob("runs/superb/mfcc/*/results.json")}
    assert folders == {"sid-lite", "sid-lite-lr-0.002", "sid-lite-sweep"}


def test_several_lexicons_are_given_one_by_one() -> None:
    import tyro

    from sjepa.commands.superb import Superb

    rest = ["pr", "--encoder", "mfcc", "--data", "corpora"]
    both = tyro.cli(Superb, args=[*rest, "--lexicon", "200k.txt", "--lexicon", "allothers.txt"])
    assert both.lexicon == (Path("200k.txt"), Path("allothers.txt"))
    assert tyro.cli(Superb, args=rest).lexicon == ()
