"""The tables of the study pages match the collected results."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["study", "study-ablations", "study-adamw", "study-iban", "study-trials"])
def test_tables_of_a_page_match_the_collected_results(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study

    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    emptied = study.MARKS.sub(r"\1\3", text)
    assert len(emptied) < len(text)
    assert study.fill_tables(page, emptied) == text


def test_collected_results_stay_with_the_weights_that_they_belong_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study

    def result(weights: str, value: float) -> dict[str, Any]:
        return {"encoder": {"fingerprint": weights}, "metrics": value}

    stored = {"name": "run-0", "results": {"units": result("a", 1), "units-4": result("a", 2)}, "curve": [3]}
    path = tmp_path / "run-0.json"
    path.write_text(json.dumps(stored))
    again = {"name": "run-0", "results": {"units": result("a", 4)}}
    merged = study.keep_stored(path, again)
    assert merged == stored | {"results": {"units": result("a", 4), "units-4": result("a", 2)}}
    mixed = {"name": "run-0", "results": {"units": result("a", 1), "asr": result("b", 2)}}
    path.write_text(json.dumps(mixed))
    assert study.keep_stored(path, again) == again
    assert "these results are left out: asr" in capsys.readouterr().out
    other = {"name": "run-0", "results": {"units": result("b", 5)}}
    path.write_text(json.dumps(stored))
    assert study.keep_stored(path, other) == other
    assert study.keep_stored(tmp_path / "new.json", again) == again


def test_entries_that_cannot_be_written_leave_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import output

    output.write_entries(tmp_path / "run.json", {"a": 1})
    monkeypatch.setattr(os, "replace", lambda *paths: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        output.write_entries(tmp_path / "run.json", {"a": 2})
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": 1}
