"""The public names: a fixed list, and an example in each docstring that runs."""

import doctest
import importlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import sjepa
from sjepa import RunFolder

PUBLIC = [
    "Clusters",
    "DiagonalGMM",
    "Encoder",
    "EncoderConfig",
    "RunFolder",
    "UserError",
    "__version__",
    "load_preset",
    "pretrain",
]


def test_dir_lists_the_public_names_that_the_documents_list() -> None:
    assert dir(sjepa) == PUBLIC
    assert sjepa.__doc__ is not None
    assert sorted(re.findall(r"^    (\w+)  ", sjepa.__doc__, re.MULTILINE)) == [n for n in PUBLIC if n[0] != "_"]
    for name in PUBLIC:
        assert getattr(sjepa, name) is not None
    page = (Path(__file__).parents[1] / "docs" / "use.md").read_text(encoding="utf-8")
    section = page.split("## From Python\n")[1].split("\n## ")[0]
    assert {n for n in PUBLIC if n[0] != "_"} <= set(re.findall(r"`(\w+)[`.(]", section))
    with pytest.raises(AttributeError, match="has no attribute 'Encodr'"):
        sjepa.Encodr  # noqa: B018


@pytest.fixture(scope="module")
def place(finished_run: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and the audio it was trained on, under the names that the examples give them."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(finished_run, folder / "runs" / "mine")
    (folder / "speech").symlink_to(corpus)
    return folder


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "__version__"])
def test_the_example_of_a_public_name_runs(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    thing = getattr(sjepa, name)
    module = importlib.import_module(thing.__module__)
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [test for test in finder.find(thing, name, module, extraglobs={"torch": torch}) if test.examples]
    assert any(test.name == name for test in tests), f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        assert runner.run(test).failed == 0, test.name


def test_metrics_come_as_a_table_of_equally_long_columns(finished_run: Path) -> None:
    run = RunFolder(finished_run)
    table = run.metrics()
    assert table["step"] == list(range(1, 13))
    assert {len(column) for column in table.values()} == {12}
    logged = [event for event in run.events() if event["event"] == "train"]
    np.testing.assert_array_equal(table["loss"], [event["loss"] for event in logged])
    assert table["decay"][0] is None  # phase 1 has no target encoder
    assert set(table["phase"]) == {1, 2}
