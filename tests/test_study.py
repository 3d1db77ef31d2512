"""The tables of the study pages match the collected results."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["study", "study-ablations", "study-adamw", "study-trials"])
def test_tables_of_a_page_match_the_collected_results(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study

    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    emptied = study.MARKS.sub(r"\1\3", text)
    assert len(emptied) < len(text)
    assert study.fill_tables(page, emptied) == text
