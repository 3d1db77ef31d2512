"""The page of a run in a real browser: every chart is drawn, and hostile text stays text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from analysed import keep_findings
from pages import COMPARISON, HOSTILE, Page, chromium, hostile_page, make_events, make_run, open_page, probe

from sjepa.report.page import write_comparison, write_page

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


# Length of all drawn paths of a chart's data: curves, dots and bars.
DRAWN = """charts => Object.fromEntries(charts.map(chart => [chart.id,
  [...chart.querySelectorAll("svg .scatterlayer path, svg .barlayer path")]
    .reduce((sum, path) => sum + path.getTotalLength(), 0)]))"""


def test_a_browser_runs_no_hostile_text(browser: Any, tmp_path: Path) -> None:
    tab = open_page(browser, hostile_page(tmp_path), 1400)
    assert tab.evaluate("window.hacked") is None
    assert HOSTILE in [text.strip() for text in tab.locator("#comparison-0 .ytick text").all_text_contents()]
    tab.close()


def test_a_browser_shows_the_beginning_of_a_run(browser: Any, tmp_path: Path) -> None:
    for number, steps in enumerate((0, 620)):
        page = write_page(make_run(tmp_path / f"run{number}", make_events(steps)), tmp_path / "page.html")
        open_page(browser, page, 1400).close()


HEATMAPS = "charts => charts.filter(chart => chart.querySelector('.heatmaplayer image')).map(chart => chart.id)"


@pytest.mark.parametrize("width", [1400, 420])
def test_a_browser_draws_every_chart(browser: Any, tmp_path: Path, width: int) -> None:
    runs = [keep_findings(make_run(tmp_path / name, make_events(shares=True))) for name in ("eins <b>", "zwei")]
    probe(runs[0], "one", 91.25)
    pages = {write_page(runs[0], tmp_path / "page.html", COMPARISON): 18}
    if width == 1400:
        pages[write_comparison(runs, tmp_path / "both.html")] = 11
    for page, number in pages.items():
        tab = open_page(browser, page, width)
        drawn = tab.eval_on_selector_all(".chart", DRAWN)
        assert drawn.keys() == Page(page).charts.keys()
        assert len(drawn) == number
        heatmaps = tab.eval_on_selector_all(".chart", HEATMAPS)
        assert {name: length for name, length in drawn.items() if length < 100 and name not in heatmaps} == {}
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.close()
