"""The page of a run: it shows the log, needs no network, and lists what is missing."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysed import corpus, findings, keep_findings, trained
from pages import COMPARISON, HOSTILE, LAYERS, Page, chromium, make_events, make_run, open_page

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.report import charts
from sjepa.report.blocks import figure
from sjepa.report.demo_comparison import DemoComparison, ProbedSystem, ProbedTask, Role
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
    assert f"trained for 1,000 steps on {hours:.1f} hours of audio, 10 passes over its corpus" in page.text
    assert "600 + 400 by phase" in page.text


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
    assert figure("name", "", {"data": [HOSTILE]}, "").count("</script>") == 1


def hostile_page(folder: Path) -> Path:
    """A page whose every source of text tries to break out."""
    events = make_events()
    events[0]["targets"] = HOSTILE
    events[-1]["alarms"] = [{"code": "dead-components", "message": HOSTILE}]
    run = make_run(folder / "run", events, {"command": HOSTILE, HOSTILE: 1})
    systems = [ProbedSystem(HOSTILE, Role.BASELINE, 0.5, 0.01), ProbedSystem("S-JEPA", Role.OURS, 0.6, 0.01)]
    comparison = DemoComparison([ProbedTask(HOSTILE, systems, 0.1, HOSTILE)])
    return write_page(run, folder / "page.html", comparison, HOSTILE)


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


def probe(run: Path, name: str, mean: float) -> None:
    """What `sjepa probe --out RUN/results/probe` leaves."""
    folder = run / "results" / "probe"
    folder.mkdir(parents=True)
    encoder = {"name": name, "parameters": 1_000_000, "states": 7, "fingerprint": name}
    layers = {"layer 5": {"speaker": {"mean": mean, "deviation": 0.5, "splits": []}}}
    found = {"task": "probe", "corpus": "LibriSpeech dev-clean", "encoder": encoder, "layers": layers}
    (folder / "results.json").write_text(json.dumps(found))


def test_results_that_lie_in_the_run_are_in_a_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_events())
    probe(run, HOSTILE, 91.25)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    probe(elsewhere, "named", 77.5)
    page = Page(write_page(run, tmp_path / "page.html"))
    assert "91.25 ± 0.50" in page.text
    assert HOSTILE in page.text
    assert "HuBERT Base †" in page.text  # reported on the same data
    assert "77.50" not in page.text
    assert "77.50" in Page(write_page(run, tmp_path / "page.html", more_results=(elsewhere,))).text


def test_findings_become_charts(tmp_path: Path) -> None:
    run = keep_findings(make_run(tmp_path / "run", make_events(shares=True)))
    found = findings()
    page = Page(write_page(run, tmp_path / "page.html"))
    assert {"softness", "clusters", "explorer"} <= set(page.anchors)
    curve = found["entropy"]["distributions"]["target"]
    shares = next(trace["y"] for trace in page.charts["entropy-distribution"]["data"] if trace["name"] == "target")
    assert [share or 0 for share in shares] == [count / curve["frames"] for count in curve["counts"]]
    for path in ("visible", "masked"):
        (joint,) = page.charts[f"entropy-joint-{path}"]["data"]
        np.testing.assert_array_equal(np.array(joint["customdata"]).T, found["entropy"]["joint"][path]["counts"])
    (phones,) = page.charts["phones"]["data"]
    np.testing.assert_allclose(np.array(phones["z"]).T, found["clusters"]["phones"]["share"])
    assert found["entropy"]["answer"] in page.text
    heat = page.charts["occupancy-2"]["data"][0]
    event = [e for e in make_events(shares=True) if e["event"] == "clusters"][-1]
    order = np.argsort(-np.array(event["share"]), kind="stable")
    assert [row[0] for row in heat["customdata"]][:50] == order[:50].tolist()  # among the emptiest, rounding decides
    assert (heat["x"][0], heat["x"][-1]) == (600, 1000)  # the phase, no step before it
    drawn = np.clip(np.log2(np.array(event["share"])[order] * 100), np.log2(0.01), 4)
    np.testing.assert_allclose([row[-1] for row in heat["z"]], drawn, atol=1e-3)


def test_masked_frames_are_listed_checkpoint_by_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_events())
    moments = [
        {
            "step": 10,
            "phase": 1,
            "components": 50,
            "accuracy": 0.1,
            "chance": 0.05,
            "predicted": [3, 9],
            "truth": [7, 4],
        },
        {
            "step": 90,
            "phase": 2,
            "components": 60,
            "accuracy": 0.4,
            "chance": 0.06,
            "predicted": [3, 5],
            "truth": [8, 5],
        },
    ]
    found = {"text": HOSTILE, "utterances": 4, "masked_frames": 70, "phones": ["a", ""], "mask": [False, True]}
    (run / "analysis").mkdir()
    (run / "analysis" / "over_training.json").write_text(json.dumps(found | {"moments": moments}))
    path = write_page(run, tmp_path / "page.html")
    page = Page(path)
    assert "masked" in page.anchors
    assert "right at 10.0% of them after 10 steps and at 40.0% at the end" in page.text
    html = path.read_text("utf-8")
    assert html.count('class="right hidden-frame"') == 1  # 5 is the truth there, 9 was not
    assert html.count('class="wrong hidden-frame"') == 1
    assert "<img src=x" not in html


def test_a_comparison_may_explain_itself(tmp_path: Path) -> None:
    comparison = DemoComparison(COMPARISON.tasks, ["What it does."], ["What it means."], {"Go on": "sjepa next"})
    page = Page(write_page(make_run(tmp_path / "run", make_events()), tmp_path / "page.html", comparison))
    assert all(text in page.text for text in ("What it does.", "What it means.", "sjepa next"))
    assert "next" in page.anchors


def test_a_calibration_and_results_of_the_full_protocol_are_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_events())
    calibration = {"corpus": "a corpus", "labels": "phones", "metric": "per", "steps": 1000, "spearman": 0.5, "p": 0.2}
    calibration |= {"scores": [30.0, 20.0], "effective_ranks": [50.0, 60.0], "best_layer": 1, "highest_rank_layer": 1}
    (run / "analysis").mkdir()
    (run / "analysis" / "erank.json").write_text(json.dumps({"calibration": calibration}))
    encoder = {"name": "mine", "parameters": 52_000_000, "fingerprint": "f", "states": 7}
    result = {"task": "asr", "protocol": {"name": "full", "steps": 9}, "encoder": encoder, "decoded": {}}
    (run / "results.json").write_text(json.dumps(result | {"metrics": {"wer": 11.0}}))
    page = Page(write_page(run, tmp_path / "page.html"))
    assert page.charts["calibration"]["data"][0]["y"] == [30.0, 20.0]
    assert "layer 1 is best and layer 1 has the highest rank: the same layer" in page.text
    ours = [trace for trace in page.charts["pareto-0"]["data"] if trace["name"] == "measured here"]
    assert [(trace["x"], trace["y"]) for trace in ours] == [([52.0], [11.0])]


def test_a_comparison_has_the_curves_of_all_runs_and_their_differences(tmp_path: Path) -> None:
    events = make_events()
    runs = [make_run(tmp_path / name, events) for name in ("one", "two")]
    (runs[1] / "config.toml").write_text((runs[0] / "config.toml").read_text().replace("seed = 7", "seed = 8"))
    probe(runs[0], "one", 91.25)
    keep_findings(runs[0])
    page = Page(write_comparison(runs, tmp_path / "page.html"))
    lines = [event for event in events if event["event"] == "train"]
    for name in ("one", "two"):
        steps, values = page.series("compare-accuracy_masked", name)
        assert (steps, values) == ([line["step"] for line in lines], [line["accuracy_masked"] for line in lines])
    ranks = [max(line["effective_rank"]) if line["phase"] == 1 else line["effective_rank"][2] for line in lines]
    assert page.series("compare-rank", "two")[1] == ranks
    assert "seed78" in page.text
    assert "hidden_size" not in page.text  # does not differ
    assert "91.25" in page.text
    assert {"softness-visible", "softness-masked", "softness-target"} <= page.charts.keys()
    same = tmp_path / "other" / "one"
    assert str(make_run(same, make_events(0))) in Page(write_comparison([runs[0], same], tmp_path / "page.html")).text


def test_runs_of_other_data_or_components_are_not_comparable(tmp_path: Path) -> None:
    data = {"event": "data", "step": 0, "hours": 960.9}
    one = make_run(tmp_path / "one", [data, *make_events()])
    two = make_run(tmp_path / "two", [data | {"hours": 0.25}, *make_events(400)], {"data": "/other"})
    page = Page(write_comparison([one, two], tmp_path / "page.html")).text
    assert "These runs differ in K and data: their masked accuracies are not comparable." in page
    assert page.count("data/audio/other") == 2  # among the runs, and among what differs
    assert page.count("hours of data960.900.25") == 2
    same = Page(write_comparison([one, one], tmp_path / "page.html")).text
    assert "comparable only between runs with the same K and data" in same


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


def interrupted_at_the_second() -> Callable[..., dict[str, Any]]:
    calls: list[str] = []

    def analyse(run: Any, speech: Any) -> dict[str, Any]:
        if calls:
            raise KeyboardInterrupt
        calls.append(speech.utterance.name)
        return {"name": speech.utterance.name}

    return analyse


def test_the_command_makes_what_the_explorer_needs_and_writes_into_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sjepa.analysis.modes.NULL_SAMPLES", 20)
    run = tmp_path / "run"
    shutil.copytree(trained(), run)
    call = ["report", str(run), "--data", str(corpus()), "--utterances", "2", "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr("sjepa.analysis.missing.analyse_utterance", interrupted_at_the_second())
        with pytest.raises(KeyboardInterrupt):
            dispatch(call)
    dispatch(call)  # and makes both, because none was left from which it would think them made
    assert "report.html" in capsys.readouterr().out
    assert len(list((run / "analysis").glob("utterance-*.json"))) == 2
    kept = (run / "analysis" / "entropy.json").stat().st_mtime_ns
    assert {"explorer", "softness", "clusters"} <= set(Page(run / "report.html").anchors)
    dispatch(["report", str(run), "--data", str(corpus()), "--device", "cpu", "--out", str(tmp_path / "again.html")])
    assert (run / "analysis" / "entropy.json").stat().st_mtime_ns == kept  # what is there is not made again
    with pytest.raises(UserError, match="there is no folder"):
        dispatch(["report", str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match=r"there is no folder \S+elsewhere"):  # though all that it is for is there
        dispatch(["report", str(run), "--data", str(tmp_path / "elsewhere")])
    with pytest.raises(UserError, match="name a run"):
        dispatch(["report"])
