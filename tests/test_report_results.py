"""Results, findings of analyses and other runs on the page of a run, and the command that makes what is missing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysed import corpus, findings, keep_findings, trained
from pages import COMPARISON, HOSTILE, Page, make_events, make_run, probe

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.report.demo_comparison import DemoComparison
from sjepa.report.page import write_comparison, write_page

pytest.importorskip("plotly")


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
    folded = page.text.index("Details and tests")  # a reader opens it
    assert page.text.index(found["entropy"]["answer"]) > folded
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
    assert "at the end of phase 1: 1,000 steps" in page.text
    (tmp_path / "more").mkdir()
    (run / "results.json").rename(tmp_path / "more" / "results.json")
    moved = Page(write_page(run, tmp_path / "page.html", more_results=(tmp_path / "more",)))
    for found in (page, moved):
        ours = [trace for trace in found.charts["pareto-0"]["data"] if trace["name"] == "measured here"]
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
    (curve,) = page.charts["softness-masked"]["data"]  # all frames are below the end of the last bin
    edges = json.loads((runs[0] / "analysis" / "entropy.json").read_text())["edges"]
    assert (curve["x"][-1], curve["y"][-1]) == (edges[-1], pytest.approx(1.0))
    same = tmp_path / "other" / "one"
    assert str(make_run(same, make_events(0))) in Page(write_comparison([runs[0], same], tmp_path / "page.html")).text


def test_results_that_all_runs_are_given_are_compared_once(tmp_path: Path) -> None:
    """Every run reads the folders of `--results`. That does not turn one result into several seeds."""
    runs = [make_run(tmp_path / name, make_events()) for name in ("one", "two", "three")]
    (tmp_path / "elsewhere").mkdir()
    probe(tmp_path / "elsewhere", "named", 71.8)
    out = tmp_path / "page.html"
    dispatch(["report", *map(str, runs), "--results", str(tmp_path / "elsewhere"), "--out", str(out)])
    page = Page(out).text
    assert "71.80 ± 0.50" in page
    assert "seeds" not in page


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
    again = ["--utterances", "2", "--device", "cpu", "--out", str(tmp_path / "again.html")]
    dispatch(["report", str(run), "--data", str(corpus()), *again])
    assert (run / "analysis" / "entropy.json").stat().st_mtime_ns == kept  # what is there is not made again
    assert "The page shows the utterances that are already in" in capsys.readouterr().out
    with pytest.raises(UserError, match="there is no folder"):
        dispatch(["report", str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match=r"there is no folder \S+elsewhere"):  # though all that it is for is there
        dispatch(["report", str(run), "--data", str(tmp_path / "elsewhere")])
    with pytest.raises(UserError, match="name a run"):
        dispatch(["report"])


def test_the_command_says_once_that_audio_has_no_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sjepa.analysis.modes.NULL_SAMPLES", 20)
    runs = [shutil.copytree(trained(), tmp_path / name) for name in ("one", "two")]
    audio = shutil.copytree(corpus(), tmp_path / "audio", ignore=shutil.ignore_patterns("labels.jsonl"))
    dispatch(["report", *map(str, runs), "--data", str(audio), "--utterances", "1", "--device", "cpu"])
    assert capsys.readouterr().out.count("has no transcripts or phone labels, so its audio is shown without them") == 1
