"""The page of a run: it shows what was logged, needs no network, and says what is missing."""

import json
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sjepa.errors import UserError
from sjepa.report import charts
from sjepa.report.page import figure, write_page

pytest.importorskip("plotly")

CHROMIUM = "/usr/bin/chromium"
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
QUIET += ("--disable-component-update", "--disable-sync")
LAYERS, K = 6, {1: 50, 2: 100}
COMPARISON = {
    "phone": {"MFCC": 0.61, "untrained encoder": 0.44, "S-JEPA, phase 1": 0.66, "S-JEPA": 0.7},
    "speaker": {"MFCC": 0.81, "untrained encoder": 0.64, "S-JEPA, phase 1": 0.96, "S-JEPA": 0.98},
    "about": {"phone": "Tested on unheard voices.", "speaker": "Random splits."},
    "chance": {"phone": 0.15, "speaker": 0.125},
}
CONFIG = """seed = 7

[encoder]
layers = 6
hidden_size = 96

[phase1]
steps = 600

[phase2]
steps = 400

[train]
clip = 1.0
"""
HOSTILE = '<b>bold</b></script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>&\''


class Page(HTMLParser):
    """The figures embedded in a page, what it would load, and the text a reader sees."""

    def __init__(self, path: Path):
        super().__init__()
        self.charts: dict[str, Any] = {}
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.inside, self.chart = "", ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.inside, self.chart = tag, given.get("data-chart") or ""
        self.tags.append(tag)
        self.loads += [value for key, value in given.items() if key in ("src", "href", "srcset", "data") and value]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.chart and self.inside == "script":
            self.charts[self.chart] = json.loads(data, parse_constant=pytest.fail)
        elif self.inside not in ("script", "style"):
            self.text += data

    def series(self, chart: str, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of a curve, without the gaps between phases."""
        (trace,) = [trace for trace in self.charts[chart]["data"] if trace["name"] == name]
        pairs = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None]
        return [x for x, _ in pairs], [y for _, y in pairs]


def train_line(step: int, phase: int, draw: np.random.Generator) -> dict[str, Any]:
    fall = np.exp(-step / 400)
    return {
        "event": "train",
        "step": step,
        "phase": phase,
        "epoch": step // 100,
        "lr": 1e-3 if phase == 1 else 3e-4,
        "loss": 2.5 + fall + 0.05 * draw.random(),
        "kl_masked": 3 + fall + 0.05 * draw.random(),
        "kl_visible": 1 + 2 * fall + 0.05 * draw.random(),
        "accuracy_masked": 0.3 * (1 - fall) + 0.02 * draw.random(),
        "accuracy_visible": 0.7 * (1 - fall) + 0.02 * draw.random(),
        "target_entropy": 0.2 + 0.01 * draw.random(),
        "predictor_entropy": 4 + fall,
        "target_perplexity": 0.9 * K[phase] + draw.random(),
        "dead_components": int(draw.integers(3)),
        "gradient_norm": 1 + draw.random(),
        "visible_loss": step <= 800,
        "augmented": step <= 800,
        "decay": None if phase == 1 else 0.99 if (step - 601) // 100 % 2 == 0 else 0.999,
        "active_layer": None if phase == 1 else 2,
        "alarms": [f"{step} of 100 components are dead; lower K"] if step in (700, 720, 740) else [],
        "speed": {"audio_per_second": 80 + draw.random(), "waiting": 0.01, "memory_gb": 1.0, "seconds": 4.0},
    }


def layers_line(step: int, phase: int, draw: np.random.Generator) -> dict[str, Any]:
    smoothed = [40 + 3 * layer + step / 50 + float(draw.random()) for layer in range(LAYERS)]
    active = 2 if step < 800 else 4
    return {
        "event": "layers",
        "step": step,
        "phase": phase,
        "ranks": [rank + float(draw.normal()) for rank in smoothed],
        "smoothed": smoothed,
        "active_layer": active,
    }


def make_events(steps: int = 1000) -> list[dict[str, Any]]:
    """A run of 600 and 400 steps, or its beginning, as the loop logs it."""
    draw = np.random.default_rng(0)
    events: list[dict[str, Any]] = [
        {"event": "phase", "step": 0, "phase": 1, "targets": "mfcc-gmm", "k": K[1], "active_layer": None}
    ]
    for step in range(20, steps + 1, 20):
        phase = 1 if step <= 600 else 2
        if step == 620:
            events.append(
                {"event": "phase", "step": 600, "phase": 2, "targets": "online-gmm", "k": K[2], "active_layer": 2}
            )
        if step % 40 == 0:
            events.append(layers_line(step, phase, draw))
        events.append(train_line(step, phase, draw))
    return events


def make_run(folder: Path, events: list[dict[str, Any]], facts: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "config.toml").write_text(CONFIG)
    (folder / "run.json").write_text(json.dumps({"data": "/audio", "sjepa": "0.1.0", "ranks": 1} | (facts or {})))
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> tuple[list[dict[str, Any]], Page]:
    """A complete run's training lines and its page."""
    events = make_events()
    page = write_page(make_run(tmp_path / "run", events), tmp_path / "page.html", COMPARISON, "A title")
    return [event for event in events if event["event"] == "train"], Page(page)


def test_curves_hold_the_logged_numbers(whole: tuple[list[dict[str, Any]], Page]) -> None:
    lines, page = whole
    curves = {
        "kl_masked": ("loss", "masked KL"),
        "kl_visible": ("loss", "visible KL"),
        "loss": ("loss", "loss"),
        "accuracy_masked": ("accuracy", "masked"),
        "accuracy_visible": ("accuracy", "visible"),
        "target_entropy": ("entropy", "targets"),
        "predictor_entropy": ("entropy", "predictor"),
        "target_perplexity": ("components", "in use (perplexity)"),
        "dead_components": ("components", "dead"),
        "gradient_norm": ("gradient_norm", ""),
        "lr": ("lr", ""),
    }
    for key, (chart, name) in curves.items():
        assert page.series(chart, name) == ([line["step"] for line in lines], [line[key] for line in lines]), key
    for key in ("audio_per_second", "waiting"):
        assert page.series(key, "")[1] == [line["speed"][key] for line in lines]


def test_the_decay_covers_phase_2_only(whole: tuple[list[dict[str, Any]], Page]) -> None:
    lines, page = whole
    steps, values = page.series("decay", "")
    assert (steps[0], values[0]) == (600, 0.99)
    assert values[1:] == [line["decay"] for line in lines if line["phase"] == 2]
    assert page.charts["decay"]["layout"]["xaxis"]["range"] == [600, 1000]


def test_every_layer_has_its_ranks_and_the_strip_its_active_layers(whole: tuple[list[dict[str, Any]], Page]) -> None:
    _, page = whole
    checks = [event for event in make_events() if event["event"] == "layers"]
    for layer in range(LAYERS):
        assert page.series("ranks", f"layer {layer}")[1] == [check["smoothed"][layer] for check in checks]
        assert page.series("ranks", f"layer {layer}, measured")[1] == [check["ranks"][layer] for check in checks]
    assert charts.active_layers(make_events()) == [(40, 600, 2, False), (600, 800, 2, True), (800, 1000, 4, True)]
    strip = [shape for shape in page.charts["ranks"]["layout"]["shapes"] if shape.get("yref") == "y2"]
    assert [(shape["x0"], shape["x1"]) for shape in strip] == [(40, 600), (600, 800), (800, 1000)]


def test_phases_and_what_ended_are_marked(whole: tuple[list[dict[str, Any]], Page]) -> None:
    layout = whole[1].charts["loss"]["layout"]
    assert [shape["x0"] for shape in layout["shapes"] if shape["type"] == "line"] == [600, 800]
    notes = {note["text"]: note["x"] for note in layout["annotations"]}
    assert notes == {"<b>Phase 1</b>": 0, "<b>Phase 2</b>": 600, "visible loss and augmentation end": 800}


def test_curves_break_between_phases(whole: tuple[list[dict[str, Any]], Page]) -> None:
    trace = whole[1].charts["loss"]["data"][0]
    assert [x for x, y in zip(trace["x"], trace["y"], strict=True) if y is None] == [600]


def test_the_average_level_is_the_divergence_from_the_mean_posterior() -> None:
    q = np.random.default_rng(0).dirichlet(np.full(8, 0.2), 500)
    mean = q.mean(0)
    line = {
        "target_perplexity": np.exp(-(mean * np.log(mean)).sum()),
        "target_entropy": -(q * np.log2(q)).sum(1).mean(),
    }
    assert charts.average_loss(line) == pytest.approx((q * np.log(q / mean)).sum(1).mean())


def test_the_comparison_is_drawn_and_told(whole: tuple[list[dict[str, Any]], Page]) -> None:
    _, page = whole
    for index, task in enumerate(("phone", "speaker")):
        chart = page.charts[f"comparison-{index}"]
        assert dict(zip(chart["data"][0]["y"], chart["data"][0]["x"], strict=True)) == COMPARISON[task]
        assert chart["layout"]["shapes"][0]["x0"] == COMPARISON["chance"][task]
        assert COMPARISON["about"][task] in page.text
    assert "70.0% phone accuracy (MFCC 61.0%; untrained encoder 44.0%; S-JEPA, phase 1 66.0%)" in page.text


def test_the_header_adds_up_steps_and_audio(whole: tuple[list[dict[str, Any]], Page]) -> None:
    lines, page = whole
    hours = sum(line["speed"]["audio_per_second"] * 4 for line in lines) / 3600
    assert f"trained for 1,000 steps and heard {hours:.1f} hours of audio, 10 passes over its corpus" in page.text
    assert "600 + 400 by phase" in page.text


def test_alarms_that_differ_in_numbers_are_told_once(whole: tuple[list[dict[str, Any]], Page]) -> None:
    text = whole[1].text
    assert "3 times, steps 700 to 740. The last:740 of 100 components are dead" in text
    assert "700 of 100" not in text


def test_settings_and_facts_are_listed(whole: tuple[list[dict[str, Any]], Page]) -> None:
    for word in ("hidden_size96", "seed7", "data/audio", "A title"):
        assert word in whole[1].text


def test_the_page_loads_nothing(whole: tuple[list[dict[str, Any]], Page]) -> None:
    assert whole[1].loads == ["data:,"]  # the empty icon, without which browsers ask for one


def test_missing_pieces_leave_notes(tmp_path: Path) -> None:
    events = [event for event in make_events(400) if event["event"] != "layers"]
    run = make_run(tmp_path / "run", events)
    (run / "run.json").unlink()
    (run / "config.toml").unlink()
    page = Page(write_page(run, tmp_path / "page.html"))
    for words in ("No comparison", "no target encoder yet", "No effective rank", "no run.json", "no config.toml"):
        assert words in page.text
    assert {"decay", "ranks", "comparison-0"}.isdisjoint(page.charts)
    assert "loss" in page.charts


def test_an_unfinished_run_says_how_far_it_is(tmp_path: Path) -> None:
    page = Page(write_page(make_run(tmp_path / "run", make_events(400)), tmp_path / "page.html"))
    assert "trained for 400 of 1,000 steps" in page.text


def test_a_run_without_a_training_line_has_a_page(tmp_path: Path) -> None:
    for number, events in enumerate(([], make_events(0))):
        page = Page(write_page(make_run(tmp_path / f"run{number}", events), tmp_path / "page.html"))
        assert "not logged a line yet" in page.text
        assert page.charts == {}


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_events(100))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "st')
    assert Page(write_page(run, tmp_path / "page.html")).series("loss", "loss")[0] == [20, 40, 60, 80, 100]


def test_numbers_that_are_not_finite_become_gaps(tmp_path: Path) -> None:
    events = make_events(100)
    events[-1] |= {"loss": float("nan"), "target_perplexity": float("inf"), "accuracy_masked": float("nan")}
    page = Page(write_page(make_run(tmp_path / "run", events), tmp_path / "page.html"))
    assert page.series("loss", "loss")[0] == [20, 40, 60, 80]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = Page(hostile_page(tmp_path))
    assert "img" not in page.tags
    assert page.tags.count("script") == 2 + len(page.charts)  # Plotly, the drawing, and the figures
    assert page.text.count(HOSTILE) >= 5  # title, run.json (key and value), alarm, comparison


def test_a_chart_cannot_end_its_script_element() -> None:
    assert figure("name", "", {"data": [HOSTILE]}, "").count("</script>") == 1


def hostile_page(folder: Path) -> Path:
    """A page whose every source of text tries to break out."""
    events = make_events()
    events[0]["targets"] = HOSTILE
    events[-1]["alarms"] = [HOSTILE]
    run = make_run(folder / "run", events, {"command": HOSTILE, HOSTILE: 1})
    comparison = {HOSTILE: {HOSTILE: 0.5, "S-JEPA": 0.6}, "about": {HOSTILE: HOSTILE}}
    return write_page(run, folder / "page.html", comparison, HOSTILE)


def test_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^\S+nowhere has no metrics\.jsonl.*$"):
        write_page(tmp_path / "nowhere", tmp_path / "page.html")
    run = make_run(tmp_path / "run", make_events(100))
    (run / "metrics.jsonl").write_text('{"event": "train"\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1 is not JSON"):
        write_page(run, tmp_path / "page.html")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UserError, match=r"pip install 'sjepa\[demo\]'"):
        write_page(run, tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "run", make_events(100)), tmp_path / "new" / "page.html"
    assert write_page(run, out, title="first") == out
    before = out.stat().st_ino
    write_page(run, out, title="second")
    assert out.stat().st_ino != before  # another file took its place; the old one was never written over
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not shutil.which(CHROMIUM):
        pytest.skip(f"needs {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield chromium
        chromium.close()


def open_page(browser: Any, path: Path, width: int) -> Any:
    """The page as loaded, after checking that nothing went wrong and nothing else was asked for."""
    tab = browser.new_page(viewport={"width": width, "height": 900})
    troubles: list[str] = []
    tab.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("request", lambda request: troubles.append(request.url) if request.url != path.as_uri() else None)
    tab.goto(path.as_uri())
    tab.wait_for_function("document.querySelectorAll('.chart:not(.js-plotly-plot)').length === 0")
    tab.wait_for_timeout(300)
    assert troubles == []
    return tab


# Length of all drawn paths of a chart's data: curves, dots and bars.
DRAWN = """charts => Object.fromEntries(charts.map(chart => [chart.id,
  [...chart.querySelectorAll("svg .scatterlayer path, svg .barlayer path")]
    .reduce((sum, path) => sum + path.getTotalLength(), 0)]))"""


@pytest.mark.parametrize("width", [1400, 420])
def test_a_browser_draws_every_chart(browser: Any, tmp_path: Path, width: int) -> None:
    page = write_page(make_run(tmp_path / "run", make_events()), tmp_path / "page.html", COMPARISON)
    tab = open_page(browser, page, width)
    drawn = tab.eval_on_selector_all(".chart", DRAWN)
    assert drawn.keys() == Page(page).charts.keys()
    assert len(drawn) == 12
    assert min(drawn.values()) > 100, drawn
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.close()


def test_a_browser_runs_no_hostile_text(browser: Any, tmp_path: Path) -> None:
    tab = open_page(browser, hostile_page(tmp_path), 1400)
    assert tab.evaluate("window.hacked") is None
    assert HOSTILE in [text.strip() for text in tab.locator("#comparison-0 .ytick text").all_text_contents()]
    tab.close()


def test_a_browser_shows_the_beginning_of_a_run(browser: Any, tmp_path: Path) -> None:
    for number, steps in enumerate((0, 20, 620)):
        page = write_page(make_run(tmp_path / f"run{number}", make_events(steps)), tmp_path / "page.html")
        open_page(browser, page, 1400).close()
