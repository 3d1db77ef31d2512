"""Effective rank over training and its calibration, size against score, and the clusters."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from analysed import corpus, findings, trained
from hypothesis import given
from hypothesis import strategies as st
from pages import K, make_events, make_run
from scipy import stats

from sjepa.analysis.calibration import calibrate, hold_out_speakers, make_task, rank_correlation, train_heads
from sjepa.analysis.clusters import (
    LOWEST,
    analyse_clusters,
    analyse_phones,
    draw_clusters,
    heat_map,
    occupancy,
    summarise_phones,
)
from sjepa.analysis.erank import analyse_erank, draw_effective_ranks, draw_erank
from sjepa.analysis.pareto import analyse_pareto, draw_pareto, frontier, frontier_line, size_axis
from sjepa.analysis.restored_run import RestoredRun
from sjepa.audio.io import read_audio
from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.results import find_results
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.upstream import Upstream, load_upstream
from sjepa.runs.events import decay_switches, select_events
from sjepa.runs.folder import RunFolder


def test_ranks_active_layers_and_switches_are_those_of_the_log() -> None:
    found, events = analyse_erank(trained()), RunFolder(trained()).events()
    checks = select_events(events, "layers")
    assert found["measured"] == [check["effective_ranks"] for check in checks]
    assert found["phases"] == [[1, 0, 12], [2, 12, 22]]
    assert found["decay_switches"] == [[16, 0.9999], [20, 0.999]]  # every 4 steps of phase 2, which starts fast
    assert decay_switches(make_events()) == [(700, 0.999), (800, 0.99), (900, 0.999)]


def test_a_run_without_layer_checks_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [event for event in make_events(100) if event["event"] != "layers"])
    with pytest.raises(UserError, match="no layer check yet"):
        analyse_erank(run)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=6))
def test_the_rank_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert rank_correlation(a, b) == (0.0, 1.0)
    else:
        assert rank_correlation(a, b)[0] == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-9)


@pytest.mark.parametrize("b", [[1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 2.0, 5.0], [9.0, 3.0, 4.0, 1.0]])
def test_its_p_value_is_that_of_all_orders(b: list[float]) -> None:
    a = [3.0, 4.0, 6.0, 8.0]
    exact = stats.permutation_test(
        (a,), lambda x: stats.spearmanr(x, b).statistic, permutation_type="pairings", alternative="greater"
    )
    assert rank_correlation(a, b)[1] == pytest.approx(exact.pvalue, abs=1e-9)


def test_many_layers_get_a_sampled_p_value() -> None:
    rho, p = rank_correlation([float(i) for i in range(12)], [float(i) for i in range(12)])
    assert rho == pytest.approx(1.0)
    assert p < 1e-3


def one_layer(upstream: Upstream, layer: int) -> Upstream:
    """The same encoder, as if it had this layer alone."""

    def run(audio: list[np.ndarray]) -> list[torch.Tensor]:
        return [states[[0, layer + 1]] for states in upstream.run(audio)]

    return dataclasses.replace(upstream, states=2, run=run)


def test_heads_that_train_together_are_the_same_as_alone() -> None:
    upstream = load_upstream(str(trained() / "encoder-phase1"))
    train, held_out = hold_out_speakers(read_labelled(corpus()), "phones", 0)
    assert not {u.speaker for u in train} & {u.speaker for u in held_out}
    task = make_task(train, held_out, "phones", 3)
    together = train_heads(FeatureStore(upstream), task, train, 3, 0)
    assert len(together) == 3
    for layer in range(3):
        (alone,) = train_heads(FeatureStore(one_layer(upstream, layer)), task, train, 3, 0)
        for ours, theirs in zip(together[layer].parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("labels", "metric"), [("phones", "per"), ("words", "wer")])
def test_a_calibration_has_a_score_and_a_rank_for_every_layer(labels: str, metric: str) -> None:
    found = calibrate(trained(), corpus(), labels=labels, steps=2, device="cpu")  # type: ignore[arg-type]
    assert found["metric"] == metric
    assert len(found["scores"]) == len(found["effective_ranks"]) == 3
    assert found["best_layer"] == int(np.argmin(found["scores"]))
    assert found["spearman"] == pytest.approx(
        rank_correlation(found["effective_ranks"], [-s for s in found["scores"]])[0], abs=1e-4
    )


def test_a_calibration_is_kept_when_ranks_are_drawn_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run, out = str(trained()), str(tmp_path)
    options = ["--data", str(corpus()), "--steps", "2", "--device", "cpu"]
    dispatch(["analyze", "erank", run, "--out", out, *options])
    first = json.loads((tmp_path / "erank.json").read_text())
    dispatch(["analyze", "erank", run, "--out", out])
    assert json.loads((tmp_path / "erank.json").read_text()) == first
    assert first["calibration"]["steps"] == 2
    assert (tmp_path / "erank.svg").is_file()
    draw_erank(first | {"calibration": None}, tmp_path / "bare")


def test_a_calibration_needs_the_end_of_phase_1(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no encoder-phase1"):
        calibrate(tmp_path, corpus())


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12), st.booleans())
def test_the_frontier_is_what_a_sweep_over_sizes_finds(points: list[tuple[float, float]], lower: bool) -> None:
    swept, best = set(), float("inf")
    for size in sorted({size for size, _ in points}):
        costs = [score if lower else -score for s, score in points if s == size]
        if min(costs) < best:
            best = min(costs)
            swept |= {i for i, (s, score) in enumerate(points) if s == size and (score if lower else -score) == best}
    assert frontier(points, lower) == swept


def test_the_frontiers_line_goes_through_its_systems_in_steps() -> None:
    systems = [
        {"millions": 50, "score": 12, "frontier": True},
        {"millions": 1, "score": 20, "frontier": True},
        {"millions": 60, "score": 19, "frontier": False},
    ]
    assert frontier_line(systems) == [(1, 20), (50, 20), (50, 12)]


def test_the_axis_of_sizes_shows_the_smallest_system() -> None:
    for millions in (0.8, 12.0):
        low, ticks = size_axis([{"millions": 50.0}, {"millions": millions}])
        assert low < min(millions, 2.0)
        assert all(tick > low for tick in ticks)


def test_decay_switches_are_drawn_in_their_own_phase() -> None:
    plots = pytest.importorskip("matplotlib.figure").Figure().subplots(1, 3)
    found = {
        "phase": [1, 2, 3], "steps": [50, 150, 250], "measured": [[1.0]] * 3, "smoothed": [[1.0]] * 3,
        "decay_switches": [[120, 0.9], [150, 0.99], [200, 0.9], [260, 0.99]],
    }  # fmt: skip
    for number, axes in enumerate(plots, 1):
        draw_effective_ranks(axes, found, number, 100 * (number - 1), 100 * number)
    drawn = [[line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] for axes in plots]
    assert drawn == [[], [120, 150, 200], [260]]


def results(run: Path, task: str, metrics: dict[str, float], name: str = "full") -> None:
    folder = run / "results" / f"{task}-{name}"
    folder.mkdir(parents=True)
    encoder = {"name": "mine <b>", "parameters": 52_000_000, "fingerprint": "f", "states": 7}
    found = {
        "task": task,
        "protocol": {"name": name, "steps": 9},
        "encoder": encoder,
        "metrics": metrics,
        "decoded": {},
    }
    (folder / "results.json").write_text(json.dumps(found))


def test_a_run_without_results_prints_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    dispatch(["analyze", "pareto", str(tmp_path)])
    command = f"sjepa superb asr --encoder {tmp_path} --data LibriSpeech --out {tmp_path}/results/asr"
    assert command in capsys.readouterr().out


def test_our_results_appear_with_reported_ones_and_lite_results_do_not(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results(tmp_path, "asr", {"wer": 11.0, "cer": 3.0})
    results(tmp_path, "asr", {"wer": 1.0, "cer": 0.3}, "lite")
    found = analyse_pareto(find_results([tmp_path]))
    ours = [system for system in found["tasks"]["asr wer"]["systems"] if system["ours"]]
    assert ours == [{"name": "mine <b>", "millions": 52.0, "score": 11.0, "ours": True, "frontier": True}]
    assert not any(system["ours"] for system in found["tasks"]["er accuracy"]["systems"])
    assert found["not_comparable"] == ["asr (Lite protocols)"]
    assert found["tasks"]["asr wer"]["without_a_size"] == ["DinoSR", "SpidR"]
    for task in found["tasks"].values():  # the paper's claim about itself
        assert [s["frontier"] for s in task["systems"] if s["name"] == "S-JEPA (paper)"] == [True]
    draw_pareto(found, tmp_path / "pareto")
    draw_pareto(analyse_pareto([]), tmp_path / "none")


def test_components_die_and_are_born() -> None:
    even, dead = 0.25, 0.25 * 0.009
    rows = [[even] * 4, [even, even, 0.5 - dead, dead], [dead, even, even, 0.5 - dead], [0.5 - dead, dead, even, even]]
    found = occupancy([{"step": s, "phase": 2, "share": row} for s, row in enumerate(rows)])
    assert found["dead"] == [0, 1, 1, 1]
    assert found["died"] == [0, 1, 1, 1]
    assert found["born"] == [0, 0, 1, 1]
    assert found["dead_at_the_end"] == [1]
    assert found["perplexity"][0] == pytest.approx(4.0)
    assert found["perplexity"][1] == pytest.approx(np.exp(stats.entropy(rows[1])), abs=0.01)
    values, components = heat_map(found)
    assert components.tolist() == [0, 2, 3, 1]  # the largest share at the end first
    assert (values == LOWEST).tolist() == [[row[k] == dead for row in rows] for k in components]
    assert values[:, 0].tolist() == [0.0] * 4
    assert values[0, -1] == pytest.approx(np.log2(4 * (0.5 - dead)), abs=1e-4)


def test_occupancy_is_that_of_the_log_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    found = analyse_clusters(trained())
    events = select_events(RunFolder(trained()).events(), "clusters")
    assert [part["phase"] for part in found["occupancy"]] == [1, 2]
    assert found["occupancy"][1]["components"] == 12
    assert found["occupancy"][1]["steps"] == [event["step"] for event in events if event["phase"] == 2]
    assert found["occupancy"][1]["start"] == found["occupancy"][0]["steps"][-1]
    assert found["missing"] is None
    without = analyse_clusters(make_run(tmp_path / "run", make_events()))
    assert without["occupancy"] == []
    assert "no shares of components are logged yet" in without["missing"]


def test_phones_of_clusters_are_posteriors_added_up_frame_by_frame() -> None:
    found, run = findings()["clusters"]["phones"], RestoredRun(trained())
    slow: dict[tuple[int, str], float] = {}
    for item in read_labelled(corpus())[::2]:
        samples = read_audio(item.utterance.path)
        target = torch.cat([piece.target for piece in run(samples)])
        for t, q in enumerate(target):
            centre = (320 * t + 200) / 16_000
            phone = next(label for _, end, label in item.segments if centre < end or end == item.segments[-1][1])
            for k in range(12):
                slow[k, phone] = slow.get((k, phone), 0.0) + float(q[k])
    for row, cluster in enumerate(found["clusters"]):
        total = sum(value for (k, _), value in slow.items() if k == cluster)
        for column, phone in enumerate(found["phones"]):
            assert found["share"][row][column] == pytest.approx(slow.get((cluster, phone), 0.0) / total, abs=1e-3)
    assert found["utterances"] == 8


def test_clusters_count_silence_after_the_last_segment() -> None:
    early = [dataclasses.replace(item, segments=item.segments[:5]) for item in read_labelled(corpus())]
    found = analyse_phones(RestoredRun(trained()), early, 8)
    assert found["phones"][0] == "SIL"  # of 1.2 s, the last 0.55 s
    assert "SIL" not in findings()["clusters"]["phones"]["phones"]


def test_clusters_leave_out_an_utterance_without_a_frame(capsys: pytest.CaptureFixture[str]) -> None:
    item, *others = read_labelled(corpus())[:4]
    short = dataclasses.replace(item, utterance=dataclasses.replace(item.utterance, samples=399))
    run = RestoredRun(trained())
    assert analyse_phones(run, [short, *others], 4) == analyse_phones(run, others, 4)
    assert re.search(
        r"left out: \S+speaker0-00\.flac: 399 samples are too few: a frame needs 400", capsys.readouterr().out
    )


def test_clusters_are_ordered_by_their_main_phone() -> None:
    joint = np.array([[1.0, 9.0], [30.0, 0.0], [0.0, 0.0], [2.0, 3.0]])
    found = summarise_phones(joint, ["a", "b"])
    assert found["phones"] == ["a", "b"]  # the most frequent first
    assert found["clusters"] == [1, 0, 3]
    assert found["names"] == {1: ["a", 1.0], 0: ["b", 0.9], 3: ["b", 0.6]}
    assert found["empty"] == 1


def test_clusters_are_drawn_with_and_without_each_part(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = findings()["clusters"]
    shares = analyse_clusters(make_run(tmp_path / "run", make_events(shares=True)))
    assert [part["components"] for part in shares["occupancy"]] == [K[1], K[2]]
    for number, each in enumerate((found, shares, found | {"occupancy": [], "missing": "none"})):
        draw_clusters(each, tmp_path / f"clusters{number}")
        assert (tmp_path / f"clusters{number}.png").stat().st_size > 5000
