"""The page of a run: it shows the log, needs no network, and lists what is missing."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysed import keep_findings
from pages import COMPARISON, HOSTILE, LAYERS, Page, hostile_page, make_events, make_run

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.report import charts
from sjepa.report.blocks import figure, prose
from sjepa.report.page import write_comparison, write_page
from sjepa.runs.events import active_layers

pytest.importorskip("plotly")


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


def test_lines_without_a_speed_leave_gaps_in_its_curves(tmp_path: Path) -> None:
    events = make_events()
    lines = [event for event in events if event["event"] == "train"]
    del lines[0]["speed"]
    lines[1]["speed"] = None
    page = Page(write_page(make_run(tmp_path / "run", events), tmp_path / "page.html", COMPARISON, "A title"))
    measured = [line["speed"]["audio_per_second"] for line in lines[2:]]
    assert page.series("audio_per_second", "")[1] == measured
    assert f"processed {sum(measured) * 4 / 3600:.1f} hours of audio" in page.text


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
        assert page.series("effective-ranks", f"layer {layer}")[1] == [check["smoothed"][layer] for check in checks]
        assert page.series("effective-ranks", f"layer {layer}, measured")[1] == [
            check["effective_ranks"][layer] for check in checks
        ]
    assert active_layers(make_events()) == [(40, 600, 2, False), (600, 800, 2, True), (800, 1000, 4, True)]
    strip = [shape for shape in page.charts["effective-ranks"]["layout"]["shapes"] if shape.get("yref") == "y2"]
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


def test_the_comparison_is_drawn_and_explained(whole: tuple[list[dict[str, Any]], Page]) -> None:
    _, page = whole
    for index, task in enumerate(COMPARISON.tasks):
        chart = page.charts[f"comparison-{index}"]
        bars = chart["data"][0]
        drawn = zip(bars["y"], bars["x"], bars["error_x"]["array"], strict=True)
        assert list(drawn) == [(system.name, system.accuracy, system.deviation) for system in task.systems]
        colours = bars["marker"]["color"]
        assert colours[0] == colours[1]  # both are baselines
        assert len(set(colours)) == 3
        assert chart["layout"]["shapes"][0]["x0"] == task.chance
        assert task.about in page.text
    assert "70.0% phone accuracy (MFCC 61.0%; untrained encoder 44.0%; S-JEPA, phase 1 66.0%)" in page.text


def test_the_header_adds_up_steps_and_audio(whole: tuple[list[dict[str, Any]], Page]) -> None:
    lines, page = whole
    hours = sum(line["speed"]["audio_per_second"] * 4 for line in lines) / 3600
    assert f"trained for 1,000 steps in 3.3 minutes. It processed {hours:.1f} hours of audio." in page.text
    assert "600 + 400 by phase" in page.text


def test_the_header_compares_the_audio_with_the_length_of_the_corpus(tmp_path: Path) -> None:
    """Not in epochs, which are shorter than the corpus, because they crop its utterances."""
    events = [{"event": "data", "step": 0, "hours": 0.5}, *make_events()]
    hours = sum(event["speed"]["audio_per_second"] * 4 for event in events if event["event"] == "train") / 3600
    page = Page(write_page(make_run(tmp_path / "run", events), tmp_path / "page.html"))
    assert f"{hours:.1f} hours of audio, {hours / 0.5:.1f} times its corpus of 30.0 minutes." in page.text


def test_backticks_become_code_and_other_text_stays_text(tmp_path: Path) -> None:
    assert prose("a `b <i>` & `c`, `d") == "a <code>b &lt;i&gt;</code> &amp; <code>c</code>, `d"
    runs = [make_run(tmp_path / name, make_events(0)) for name in ("one", "two")]
    for page in (write_page(runs[0], tmp_path / "page.html"), write_comparison(runs, tmp_path / "both.html")):
        assert "`" not in Page(page).text
        assert "<code>sjepa " in page.read_text("utf-8")


def test_alarms_that_differ_only_in_numbers_are_listed_once(whole: tuple[list[dict[str, Any]], Page]) -> None:
    text = whole[1].text
    assert "3 times, steps 700 to 740. The last:740 of 100 components are dead" in text
    assert "700 of 100" not in text


def test_a_run_that_learns_nothing_at_masked_frames_has_a_warning(tmp_path: Path) -> None:
    events, words = make_events(shares=True), "does not yet predict better than the average target"
    learning = Page(write_page(make_run(tmp_path / "learning", events), tmp_path / "page.html")).text
    assert words not in learning
    shares = [event["share"] for event in events if event["event"] == "clusters"][-1]
    assert f"phase 2, K = 100, chance {max(shares):.1%}" in learning
    for event in events:
        if event["event"] == "train":
            event |= {"kl_masked": charts.average_loss(event), "alarms": []}
    page = Page(write_page(make_run(tmp_path / "run", events), tmp_path / "page.html")).text
    assert words in page
    assert "nats): the encoder learned from visible frames." in page
    assert "The run raised no alarm, but masked frames are predicted no better than by the average." in page
    without = [event for event in events if event["event"] != "clusters"]
    assert "chance 1.0%" in Page(write_page(make_run(tmp_path / "without", without), tmp_path / "page.html")).text


def test_settings_and_facts_are_listed(whole: tuple[list[dict[str, Any]], Page]) -> None:
    for word in ("hidden_size96", "seed7", "data/audio", "A title"):
        assert word in whole[1].text


def test_the_page_loads_nothing(whole: tuple[list[dict[str, Any]], Page]) -> None:
    elsewhere = [load for load in whole[1].loads if not load.startswith("#")]
    assert elsewhere == ["data:,"]  # the empty icon, without which browsers ask for one


def test_the_navigation_links_to_every_section_in_order(tmp_path: Path) -> None:
    complete = keep_findings(make_run(tmp_path / "complete", make_events(shares=True)))
    begun = make_run(tmp_path / "begun", [])
    pages = [Page(write_page(run, tmp_path / "page.html")) for run in (complete, begun)]
    pages.append(Page(write_comparison([complete, begun], tmp_path / "page.html")))
    for page in pages:
        assert [load.removeprefix("#") for load in page.loads if load.startswith("#")] == page.anchors
    assert pages[1].anchors == ["gaps", "details"]  # the others need a logged line, or results


def test_missing_pieces_leave_notes(tmp_path: Path) -> None:
    events = [event for event in make_events(400) if event["event"] != "layers"]
    run = make_run(tmp_path / "run", events)
    (run / "run.json").unlink()
    (run / "config.toml").unlink()
    page = Page(write_page(run, tmp_path / "page.html"))
    for words in ("no target encoder yet", "No effective rank", "no run.json", "no config.toml"):
        assert words in page.text
    for name in ("explorer", "softness", "clusters", "results", "pareto"):
        assert name not in page.anchors
    for command in (
        f"sjepa report {run} --data DATA",
        f"sjepa analyze entropy {run} --data DATA",
        f"sjepa analyze clusters {run} --data LABELLED",
        f"sjepa analyze erank {run} --data LABELLED",
        f"sjepa probe --encoder {run} --data LABELLED",
        f"sjepa superb asr --encoder {run} --data LibriSpeech",
    ):
        assert command in page.text
    assert {"decay", "effective-ranks", "comparison-0"}.isdisjoint(page.charts)
    assert "loss" in page.charts


def test_the_page_of_an_unfinished_run_states_its_progress(tmp_path: Path) -> None:
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
    assert figure("name", "", {"data": [HOSTILE], "layout": {"height": 1}}, "").count("</script>") == 1


def test_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^there is no run \S+nowhere: .*$"):
        write_page(tmp_path / "nowhere", tmp_path / "page.html")
    run = make_run(tmp_path / "run", make_events(100))
    (run / "encoder").mkdir()
    with pytest.raises(UserError, match=rf"^{run}/encoder is not a run: .*; did you mean {run}\?$"):
        dispatch(["report", str(run / "encoder")])
    (run / "metrics.jsonl").write_text('{"event": "train"\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1 is not JSON"):
        write_page(run, tmp_path / "page.html")
    (run / "metrics.jsonl").write_text("")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UserError, match=r"pip install 'sjepa\[figures\]'"):
        write_page(run, tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "run", make_events(100)), tmp_path / "new" / "page.html"
    assert write_page(run, out, title="first") == out
    before = out.stat().st_ino
    write_page(run, out, title="second")
    assert out.stat().st_ino != before  # another file took its place; the old one was never written over
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
