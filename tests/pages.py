"""Made-up runs, their pages as a parser sees them, and a real browser."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sjepa.report.demo_comparison import DemoComparison, ProbedSystem, ProbedTask, Role
from sjepa.report.page import write_page

CHROMIUM = "/usr/bin/chromium"
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
QUIET += ("--disable-component-update", "--disable-sync")
LAYERS, K = 6, {1: 50, 2: 100}


def probed_systems(*accuracies: float) -> list[ProbedSystem]:
    names = ("MFCC", "untrained encoder", "S-JEPA, phase 1", "S-JEPA")
    roles = (Role.BASELINE, Role.BASELINE, Role.EARLIER, Role.OURS)
    return [ProbedSystem(*system, 0.01) for system in zip(names, roles, accuracies, strict=True)]


COMPARISON = DemoComparison(
    [
        ProbedTask("phone", probed_systems(0.61, 0.44, 0.66, 0.7), 0.15, "Tested on held-out voices."),
        ProbedTask("speaker", probed_systems(0.81, 0.64, 0.96, 0.98), 0.125, "Random splits."),
    ]
)
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
        self.anchors: list[str] = []
        self.text = ""
        self.inside, self.chart = "", ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.inside, self.chart = tag, given.get("data-chart") or ""
        self.tags.append(tag)
        self.anchors += [given["id"] or ""] if tag == "section" and "id" in given else []
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
        "effective_rank": [40.0 + layer for layer in range(LAYERS)],
        "alarms": [dead_components(step)] if step in (700, 720, 740) else [],
        "speed": {"audio_per_second": 80 + draw.random(), "waiting": 0.01, "memory_gb": 1.0, "seconds": 4.0},
    }


def dead_components(count: int) -> dict[str, str]:
    return {"code": "dead-components", "message": f"{count} of 100 components are dead; lower K"}


def layers_line(step: int, phase: int, draw: np.random.Generator) -> dict[str, Any]:
    smoothed = [40 + 3 * layer + step / 50 + float(draw.random()) for layer in range(LAYERS)]
    active = 2 if step < 800 else 4
    return {
        "event": "layers",
        "step": step,
        "phase": phase,
        "effective_ranks": [rank + float(draw.normal()) for rank in smoothed],
        "smoothed": smoothed,
        "active_layer": active,
    }


def share_line(step: int, phase: int, draw: np.random.Generator) -> dict[str, Any]:
    share = draw.dirichlet(np.full(K[phase], 0.3))
    return {"event": "clusters", "step": step, "phase": phase, "share": share.tolist()}


def make_events(steps: int = 1000, shares: bool = False, first: int = 600) -> list[dict[str, Any]]:
    """A run whose first phase has 600 of 1,000 steps, or its beginning, as the loop logs it."""
    draw = np.random.default_rng(0)
    events: list[dict[str, Any]] = [
        {"event": "phase", "step": 0, "phase": 1, "targets": "mfcc-gmm", "k": K[1], "active_layer": None}
    ]
    for step in range(20, steps + 1, 20):
        phase = 1 if step <= first else 2
        if step == first + 20:
            events.append(
                {"event": "phase", "step": first, "phase": 2, "targets": "online-gmm", "k": K[2], "active_layer": 2}
            )
        if step % 40 == 0:
            events.append(layers_line(step, phase, draw))
        if shares and step % 100 == 0:
            events.append(share_line(step, phase, draw))
        events.append(train_line(step, phase, draw))
    return events


def make_run(folder: Path, events: list[dict[str, Any]], facts: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "config.toml").write_text(CONFIG)
    (folder / "run.json").write_text(json.dumps({"data": "/audio", "sjepa": "0.1.0", "world_size": 1} | (facts or {})))
    return folder


def hostile_page(folder: Path) -> Path:
    """A page whose every source of text tries to break out."""
    events = make_events()
    events[0]["targets"] = HOSTILE
    events[-1]["alarms"] = [{"code": "dead-components", "message": HOSTILE}]
    run = make_run(folder / "run", events, {"command": HOSTILE, HOSTILE: 1})
    systems = [ProbedSystem(HOSTILE, Role.BASELINE, 0.5, 0.01), ProbedSystem("S-JEPA", Role.OURS, 0.6, 0.01)]
    comparison = DemoComparison([ProbedTask(HOSTILE, systems, 0.1, HOSTILE)])
    return write_page(run, folder / "page.html", comparison, HOSTILE)


def probe(run: Path, name: str, mean: float) -> None:
    """What `sjepa probe --out RUN/results/probe` leaves."""
    folder = run / "results" / "probe"
    folder.mkdir(parents=True)
    encoder = {"name": name, "parameters": 1_000_000, "states": 7, "fingerprint": name}
    layers = {"layer 5": {"speaker": {"mean": mean, "deviation": 0.5, "splits": []}}}
    found = {"task": "probe", "corpus": "LibriSpeech dev-clean", "encoder": encoder, "layers": layers}
    (folder / "results.json").write_text(json.dumps(found))


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's browser through Playwright; tests that need it skip where one of the two is absent."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not shutil.which(CHROMIUM):
        pytest.skip(f"needs {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield launched
        launched.close()


def wait(tab: Any, condition: str) -> None:
    """Until something is so in the page; Playwright's own way evaluates text there, which the page's policy forbids."""
    deadline = time.monotonic() + 20
    while not tab.evaluate(condition):
        assert time.monotonic() < deadline, condition
        tab.wait_for_timeout(30)


def open_page(browser: Any, path: Path, width: int) -> Any:
    """The page as loaded, after checking that nothing went wrong and nothing else was asked for."""
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.troubles = troubles = []
    tab.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    # The sound of the explorer is a blob that the page itself holds.
    inside = (path.as_uri(), "blob:")
    tab.on("request", lambda request: None if request.url.startswith(inside) else troubles.append(request.url))
    tab.goto(path.as_uri())
    wait(tab, "document.querySelectorAll('.chart:not(.js-plotly-plot)').length === 0")
    tab.wait_for_timeout(300)
    assert troubles == []
    return tab
