"""The utterance explorer in a real browser: it plays, seeks, steps and shows the values of a frame."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analysed import findings, keep_findings
from pages import HOSTILE, chromium, make_events, make_run, open_page, wait

from sjepa.analysis.style import save_findings
from sjepa.report.explorer import entry
from sjepa.report.page import write_comparison, write_page

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run without charts, which take a browser seconds to draw."""
    folder = tmp_path_factory.mktemp("pages")
    run = keep_findings(make_run(folder / "run", make_events(0)), "utterance-")
    hostile = first() | {"name": HOSTILE, "text": HOSTILE, "phones": [(0.0, 1.2, HOSTILE)], "words": []}
    save_findings(hostile, run / "analysis", "utterance-zz")
    return write_page(run, folder / "page.html")


def first() -> dict[str, Any]:
    return next(found for name, found in sorted(findings().items()) if name.startswith("utterance-"))


class Explorer:
    """A tab with the explorer in view."""

    def __init__(self, browser: Any, page: Path, width: int = 1300):
        self.tab = open_page(browser, page, width)
        self.root = self.tab.locator(".explorer")
        self.root.scroll_into_view_if_needed()
        self.until("root.dataset.ready === 'yes'")

    def until(self, condition: str) -> None:
        wait(self.tab, f"(root => {condition})(document.querySelector('.explorer'))")

    def restart(self) -> None:
        self.root.locator(".which").select_option(index=1)
        self.root.locator(".which").select_option(index=0)
        self.root.focus()
        self.tab.mouse.move(1, 1)

    def __getattr__(self, name: str) -> str:
        return self.root.evaluate(f"root => root.dataset.{name}")

    def text(self, selector: str) -> str:
        return self.root.locator(selector).first.inner_text()

    def place(self, seconds: float) -> dict[str, float]:
        """Where a time lies on the tracks."""
        box = self.root.locator(".cursor").bounding_box()
        gutter = float(self.gutter)
        return {"x": gutter + seconds / 1.2 * (box["width"] - gutter - 4), "y": 60.0}


@pytest.fixture(scope="module", params=[1300, 420])
def tab(browser: Any, page: Path, request: pytest.FixtureRequest) -> Iterator[Explorer]:
    opened = Explorer(browser, page, request.param)
    yield opened
    opened.tab.close()


@pytest.fixture
def explorer(tab: Explorer) -> Iterator[Explorer]:
    tab.restart()
    yield tab
    assert tab.tab.troubles == []


def test_arrow_keys_step_frames(explorer: Explorer) -> None:
    assert explorer.frame == "0"
    for keys, frame in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("Shift+ArrowRight", 11), ("End", 58)):
        explorer.tab.keyboard.press(keys)
        assert int(explorer.frame) == frame, keys
    explorer.tab.keyboard.press("ArrowRight")  # there is no frame after the last
    assert explorer.frame == "58"
    explorer.tab.keyboard.press("Home")
    assert explorer.frame == "0"


def test_a_click_seeks_and_the_sound_goes_there_too(explorer: Explorer) -> None:
    explorer.root.locator(".cursor").click(position=explorer.place(0.6))
    assert float(explorer.time) == pytest.approx(0.6, abs=0.01)
    assert explorer.root.locator("audio").evaluate("audio => audio.currentTime") == pytest.approx(0.6, abs=0.01)
    assert explorer.text(".clock") == "0.60 / 1.20 s"


def test_hovering_shows_the_values_of_a_frame(explorer: Explorer) -> None:
    frame, found = 25, first()
    explorer.root.locator(".cursor").hover(position=explorer.place(0.0125 + 0.02 * frame))
    assert explorer.shown == str(frame)
    assert explorer.frame == "0"  # pointing does not seek
    for part in ("visible", "masked", "target"):
        assert f"{found[part]['entropy'][frame]:.2f} bits" in explorer.text(f".{part}")
        best, share = found[part]["clusters"][frame][0], found[part]["posteriors"][frame][0]
        assert explorer.text(f".{part} .bar span").startswith(str(best))
        digits = 1 if share < 0.0995 else 0
        assert explorer.text(f".{part} .bar b") == f"{100 * share:.{digits}f}%"
    phone = next(label for start, end, label in found["phones"] if start <= 0.0125 + 0.02 * frame < end)
    assert phone in explorer.text(".facts")
    assert " in " not in explorer.text(".facts")  # the frame lies between two words
    explorer.root.locator(".cursor").hover(position=explorer.place(0.2))
    assert explorer.text(".facts").endswith(" in first")


def test_it_plays_pauses_and_moves_its_cursor(explorer: Explorer) -> None:
    audio = explorer.root.locator("audio")
    audio.evaluate("audio => { audio.playbackRate = 0.25; }")  # a busy machine pauses it before its end too
    explorer.root.locator(".play").click()
    explorer.until("Number(root.dataset.time) > 0.2")
    assert explorer.playing == "yes"
    explorer.root.locator(".play").click()
    explorer.until("root.dataset.playing === 'no'")
    here = float(explorer.time)
    assert 0.2 < here < 1.2
    audio.evaluate("audio => { audio.playbackRate = 1.0; }")
    explorer.root.locator(".cursor").click(position=explorer.place(0.1))
    explorer.tab.keyboard.press(" ")  # the explorer has the focus now
    explorer.until("Number(root.dataset.time) > 0.9")
    explorer.until("root.dataset.playing === 'no'")  # the end


def test_another_utterance_can_be_picked_and_hostile_text_stays_text(explorer: Explorer) -> None:
    explorer.root.locator(".after").click()
    second = sorted(name for name in findings() if name.startswith("utterance-"))[1]
    assert explorer.utterance == findings()[second]["name"]
    explorer.root.locator(".which").select_option(index=3)
    assert explorer.utterance == HOSTILE
    assert HOSTILE in explorer.text(".transcript")
    assert HOSTILE in explorer.text(".facts")
    assert explorer.tab.evaluate("window.hacked") is None
    assert explorer.tab.locator("main img").count() == 0


def test_zoom_keeps_the_cursor_in_view(explorer: Explorer) -> None:
    explorer.root.locator(".cursor").click(position=explorer.place(1.0))
    for _ in range(2):
        explorer.root.locator(".in").click()
    explorer.root.locator(".cursor").hover(position=explorer.place(0.0) | {"x": explorer.place(0.0)["x"] + 1})
    assert int(explorer.shown) > 35  # the left edge is no longer the beginning
    explorer.root.locator(".fit").click()
    explorer.root.locator(".cursor").hover(position=explorer.place(0.0) | {"x": explorer.place(0.0)["x"] + 1})
    assert explorer.shown == "0"


def test_the_tracks_are_painted(explorer: Explorer) -> None:
    """The spectrogram's loudest column is brighter than its softest, and the cluster strip has several colours."""
    painted = explorer.root.locator(".tracks").evaluate(
        """canvas => {
          const scale = canvas.width / canvas.clientWidth, width = canvas.width - 140 * scale;
          const {data} = canvas.getContext("2d").getImageData(130 * scale, 0, width, 300 * scale);
          const at = (x, y) => data.slice(4 * (y * Math.round(width) + x), 4 * (y * Math.round(width) + x) + 3).join();
          return [120, 250].map(y => new Set(Array.from({length: width}, (_, x) => at(x, y * scale))).size);
        }"""
    )
    assert painted[0] > 20
    assert painted[1] > 3


def test_no_name_of_a_track_is_cut(explorer: Explorer) -> None:
    """Nothing is painted in the first column of pixels, so every name begins inside the canvas."""
    painted = explorer.root.locator(".tracks").evaluate(
        """canvas => {
          const column = Object.assign(document.createElement("canvas"), {width: 1, height: canvas.height});
          const context = column.getContext("2d", {willReadFrequently: true});
          context.drawImage(canvas, 0, 0);
          return context.getImageData(0, 0, 1, canvas.height).data.some(value => value > 0);
        }"""
    )
    assert not painted


def test_read_outs_are_in_columns_of_equal_width(explorer: Explorer) -> None:
    boxes = [part.bounding_box() for part in explorer.root.locator(".readout .part").all()]
    assert len(boxes) == 3
    assert max(box["width"] for box in boxes) - min(box["width"] for box in boxes) < 1
    rows = {round(box["y"]) for box in boxes}
    assert len(rows) == (3 if explorer.tab.viewport_size["width"] == 420 else 1)


def test_the_same_utterance_of_two_runs_is_compared_at_the_same_place(browser: Any, tmp_path: Path) -> None:
    runs = [keep_findings(make_run(tmp_path / name, make_events(0)), "utterance-") for name in ("one", "two")]
    explorer = Explorer(browser, write_comparison(runs, tmp_path / "page.html"))
    for _ in range(7):
        explorer.tab.keyboard.press("ArrowRight")
    options = explorer.root.locator(".which option").all_inner_texts()
    assert [option.split(" · ")[0] for option in options] == ["one", "two"] * 3
    explorer.root.locator(".after").click()
    assert explorer.frame == "7"
    assert explorer.tab.troubles == []
    explorer.tab.close()


def test_phones_of_clusters_are_shown_for_utterances_of_the_same_phase() -> None:
    phones, utterance = findings()["clusters"]["phones"], first()
    names = {}
    for phase in (1, 2):
        report: Any = SimpleNamespace(name="run", found={"clusters": {"phones": phones | {"phase": phase}}})
        names[phase] = entry(report, utterance, name_run=False)["cluster_names"]
    assert names.pop(utterance["run"]["phase"]) == phones["names"] != {}
    assert list(names.values()) == [{}]
