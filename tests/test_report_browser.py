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


# Labels of a chart that reach over its edge, where the browser cuts them, or that lie under its buttons.
CUT = """charts => charts.flatMap(chart => {
  const box = chart.getBoundingClientRect(), bar = chart.querySelector(".modebar-group");
  const under = (label, buttons) => label.right > buttons.left && label.bottom > buttons.top
    && label.left < buttons.right && label.top < buttons.bottom;
  return [...chart.querySelectorAll(".annotation-text")].filter(text => {
    const label = text.getBoundingClientRect();
    return label.left < box.left - 1 || label.right > box.right + 1 || bar && under(label, bar.getBoundingClientRect());
  }).map(text => chart.id + ": " + text.textContent);
})"""

# Numbers with units that need two lines, or more room than their card has.
BROKEN = """cards => cards.filter(card => {
  const range = document.createRange();
  range.selectNode(card.firstChild);
  const box = range.getBoundingClientRect();
  const most = 1.5 * parseFloat(getComputedStyle(card).fontSize);
  return box.height > most || box.right > card.getBoundingClientRect().right;
}).map(card => card.innerText)"""


@pytest.mark.parametrize("width", [1440, 1280, 420])
def test_a_browser_cuts_no_label_and_breaks_no_number(browser: Any, tmp_path: Path, width: int) -> None:
    events = make_events(first=880)  # the last phase is short
    for event in events:
        if event["event"] == "train":
            event["speed"]["seconds"] = 1.2  # 80 minutes of audio
            if event["step"] > 980:
                event["decay"] = 0.999  # it switches at the right edge
    run = keep_findings(make_run(tmp_path / "run", events), "entropy")
    tab = open_page(browser, write_page(run, tmp_path / "page.html", COMPARISON), width)
    assert tab.eval_on_selector_all(".chart", CUT) == []
    assert "80.5 minutes" in [text.splitlines()[0] for text in tab.locator(".cards dd").all_inner_texts()]
    assert tab.eval_on_selector_all(".cards dd", BROKEN) == []
    tab.close()


def test_a_narrow_window_does_not_scroll_sideways(browser: Any, tmp_path: Path) -> None:
    """Not even with long names, with all details open, and before charts have followed the window."""
    name = "a_name_without_a_place_to_break_" * 4
    runs = [keep_findings(make_run(tmp_path / name / each, make_events()), "entropy") for each in (name, "other")]
    pages = [
        write_page(runs[0], tmp_path / "page.html", COMPARISON, f"S-JEPA: {name}"),
        write_comparison(runs, tmp_path / "both.html"),
    ]
    for page in pages:
        tab = open_page(browser, page, 1280)
        tab.set_viewport_size({"width": 420, "height": 900})
        tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 420
        tab.close()


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
        kept = tab.eval_on_selector_all(
            ".chart", "charts => charts.map(c => [c.offsetHeight, parseInt(c.style.minHeight)])"
        )
        assert all(height == free for height, free in kept)  # nothing moved when the charts were drawn
        drawn = tab.eval_on_selector_all(".chart", DRAWN)
        assert drawn.keys() == Page(page).charts.keys()
        assert len(drawn) == number
        heatmaps = tab.eval_on_selector_all(".chart", HEATMAPS)
        assert {name: length for name, length in drawn.items() if length < 100 and name not in heatmaps} == {}
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.close()
