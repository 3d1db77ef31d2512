"""Entropies: their definition, their modes, and analyses that do not change the run."""

import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from analysed import corpus, findings, trained
from conftest import micro_config
from scipy import optimize, stats

from sjepa.analysis import modes
from sjepa.analysis.entropy import analyse_entropy, describe_entropies, describe_modes, describe_softness, draw_entropy
from sjepa.analysis.modes import count_modes, dip, dip_test, make_grid
from sjepa.analysis.restored_run import RestoredRun, entropy_bits
from sjepa.audio.frames import frame_count
from sjepa.audio.io import read_audio
from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.units import make_head_source, make_predictor_source
from sjepa.evaluate.upstream import load_upstream
from sjepa.train.loop import pretrain


@pytest.fixture(scope="module")
def restored() -> RestoredRun:
    return RestoredRun(trained())


def some_audio(index: int = 0) -> np.ndarray:
    return read_audio(sorted(corpus().glob("*.flac"))[index])


def test_entropy_is_that_of_scipy_and_of_known_distributions() -> None:
    p = np.random.default_rng(0).dirichlet(np.full(7, 0.3), 50)
    np.testing.assert_allclose(entropy_bits(torch.from_numpy(p)), stats.entropy(p, base=2, axis=1), atol=1e-9)
    known = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]])
    assert entropy_bits(known).tolist() == [0.0, 1.0, 2.0]


def test_the_best_component_of_each_path_is_its_unit(restored: RestoredRun) -> None:
    samples, utterance = some_audio(), Utterance("first", sorted(corpus().glob("*.flac"))[0], "")
    upstream = load_upstream(str(trained()))
    (states,) = upstream.extract([samples])
    frames = list(restored(samples))
    units = {
        "visible": make_head_source(upstream).assign([utterance], [states[-1].numpy()]),
        "masked": make_predictor_source(upstream, trained(), seed=0).assign([utterance], []),
    }
    for path, chosen in units.items():
        predicted = torch.cat([getattr(piece, path) for piece in frames])
        best = predicted[torch.arange(len(chosen)), torch.from_numpy(chosen)]
        torch.testing.assert_close(best, predicted.max(1).values, atol=1e-4, rtol=0)  # two may be as good
    assert not np.array_equal(units["visible"], units["masked"])


def test_files_of_a_folder_are_whole_utterances(restored: RestoredRun, tmp_path: Path) -> None:
    """A file of five seconds stays one utterance, although the run trained on two seconds at most."""
    soundfile.write(tmp_path / "long.wav", np.tile(some_audio(), 5)[: 5 * 16_000], 16_000)
    found = analyse_entropy(restored, str(tmp_path), 500)
    assert found["run"]["utterances"] == 1
    assert found["distributions"]["masked"]["frames"] == frame_count(5 * 16_000)


def test_targets_are_the_softened_posterior_of_the_mixture_written_slowly(restored: RestoredRun) -> None:
    samples = some_audio()[:16_000]
    (piece,) = restored(samples)
    targets = restored.run.targets
    features = targets.frame_features(torch.from_numpy(samples)[None], restored.run.active_layer)[0].double()
    gmm = targets.codebook
    for t in (0, 7, 30):
        joint = []
        for k in range(12):
            mean, variance = gmm.means[k].double(), gmm.variances[k].double()
            density = -0.5 * (torch.log(2 * math.pi * variance) + (features[t] - mean) ** 2 / variance).sum()
            joint.append(float(torch.log(gmm.weights[k].double()) + density))
        for temperature, found in ((3.0, piece.target), (1.0, piece.plain)):
            slow = np.exp((np.array(joint) - max(joint)) / temperature)
            assert found is not None
            np.testing.assert_allclose(found[t].numpy(), slow / slow.sum(), atol=0.03)  # fp32 against fp64


def test_looking_teaches_the_online_mixture_nothing() -> None:
    run = RestoredRun(trained())
    assert run.about["targets"] == "online-gmm"
    before = {name: tensor.clone() for name, tensor in run.run.targets.state_dict().items()}
    first = [piece.target for piece in run(some_audio())]
    again = [piece.target for piece in run(some_audio())]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(before[name], tensor) for name, tensor in run.run.targets.state_dict().items())


@pytest.mark.parametrize("targets", ["best-rq", "mfcc-kmeans"])
def test_targets_that_are_codes_have_no_posterior(targets: str, tmp_path: Path) -> None:
    config = micro_config(phase1={"targets": targets}, phase2={"targets": "same"})
    assert pretrain(config, corpus(), tmp_path / "run", show=False)
    (piece,) = RestoredRun(tmp_path / "run")(some_audio())
    assert set(piece.target.sum(-1).tolist()) == set(piece.target.amax(-1).tolist()) == {1.0}
    assert piece.plain is None


def test_pieces_of_long_audio_tile_its_frames(restored: RestoredRun) -> None:
    samples = np.tile(some_audio(), 6)[:-123]
    pieces = list(restored(samples))
    assert len(pieces) > 1
    assert max(len(piece.target) for piece in pieces) <= 100  # two seconds, the longest crop of training
    assert sum(len(piece.visible) for piece in pieces) == frame_count(len(samples))
    assert all(len(piece.masked) == len(piece.visible) for piece in pieces)
    first = next(restored(samples[: (len(pieces[0].target) - 1) * 320 + 400]))
    torch.testing.assert_close(first.visible, pieces[0].visible)
    torch.testing.assert_close(first.masked, pieces[0].masked)


def test_a_run_without_a_checkpoint_and_a_folder_that_is_no_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        RestoredRun(tmp_path)
    (tmp_path / "config.toml").write_text((trained() / "config.toml").read_text())
    with pytest.raises(UserError, match="no checkpoint yet"):
        RestoredRun(tmp_path)


def bits(*centres: float, deviation: float = 0.1, seed: int = 0) -> list[np.ndarray]:
    """Utterances of 50 frames whose values lie around some centres."""
    draw = np.random.default_rng(seed)
    return [np.abs(draw.choice(centres, 50) + deviation * draw.normal(size=50)) for _ in range(40)]


def test_the_kernel_estimate_is_scipys() -> None:
    values = np.concatenate(bits(0.5, 2.0))
    grid = make_grid(values)
    ours = grid.density(grid.counts(values), 0.2)
    theirs = stats.gaussian_kde(values, 0.2 / values.std(ddof=1))(grid.centres)
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


@pytest.mark.parametrize("centres", [(1.0,), (0.5, 1.5), (0.5, 2.0, 4.0)])
def test_modes_are_found_where_they_are(centres: tuple[float, ...]) -> None:
    found = count_modes(bits(*centres))
    assert [mode["bits"] for mode in found["modes"]] == pytest.approx(centres, abs=0.06)
    assert [mode["share"] for mode in found["modes"]] == pytest.approx([1 / len(centres)] * len(centres), abs=0.04)
    assert (found["test"]["p"] < 0.05) == (len(centres) > 1)


def slow_dip(x: np.ndarray) -> float:
    """The smallest distance to a distribution that is convex up to a value and concave after it: a linear program."""
    n, best = len(x), 1.0
    for m in range(n):  # the mode; the distribution may jump there, so that it has two variables
        left = [(x[i], i, i / n, (i + 1) / n) for i in range(m)] + [(x[m], m, m / n, m / n)]
        right = [(x[m], m + 1, (m + 1) / n, (m + 1) / n)]
        right += [(x[i], i + 1, i / n, (i + 1) / n) for i in range(m + 1, n)]
        rows, limits = [], []

        def require(limit: float, rows: list[Any] = rows, limits: list[Any] = limits, **factors: float) -> None:
            row = np.zeros(n + 2)  # the last variable is the distance
            for name, factor in factors.items():
                row[int(name[1:])] += factor
            rows.append(row)
            limits.append(limit)

        distance = f"v{n + 1}"
        for _, j, below, at in left + right:
            require(below, **{f"v{j}": 1.0, distance: -1.0})
            require(-at, **{f"v{j}": -1.0, distance: -1.0})
        for side, sign in ((left, 1.0), (right, -1.0)):
            for (x1, a, *_), (x2, b, *_), (x3, c, *_) in zip(side, side[1:], side[2:], strict=False):
                before, after = sign / (x2 - x1), sign / (x3 - x2)
                require(0.0, **{f"v{a}": -before, f"v{b}": before + after, f"v{c}": -after})
        for (_, a, *_), (_, b, *_) in pairwise(left + right):
            require(0.0, **{f"v{a}": 1.0, f"v{b}": -1.0})
        solved = optimize.linprog(np.eye(n + 2)[-1], A_ub=np.array(rows), b_ub=limits, bounds=(0, 1))
        best = min(best, solved.fun) if solved.success else best
    return best


@pytest.mark.parametrize("seed", range(9))
def test_the_dip_is_the_distance_to_the_nearest_unimodal_distribution(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(4, 13))
    kinds = (draw.random(n), draw.exponential(size=n), draw.normal(size=n) + 6 * (np.arange(n) % 2))
    values = np.sort(kinds[seed % 3])
    assert dip(values) == pytest.approx(slow_dip(values), abs=1e-7)


@pytest.mark.parametrize("kind", ["exponential", "lognormal", "uniform", "utterances", "runs"])
def test_one_mode_is_rarely_rejected_whatever_its_tail_and_though_frames_depend_on_each_other(kind: str) -> None:
    def values(draw: np.random.Generator) -> np.ndarray:
        if kind == "exponential":
            return draw.exponential(0.4, 100)
        if kind == "lognormal":
            return np.exp(0.9 * draw.normal(size=100) - 1)
        if kind == "utterances":
            return 2 + 0.3 * draw.normal() + 0.1 * draw.normal(size=100)
        return np.repeat(draw.random(10), 10) if kind == "runs" else draw.random(100)

    wrong = 0
    for seed in range(20):
        wrong += dip_test([values(np.random.default_rng((seed, index))) for index in range(40)])["p"] < 0.05
    assert wrong <= 3


def test_a_smooth_competition_of_two_components_already_has_a_mode_near_one_bit() -> None:
    """Why docs/analysis.md warns: the entropy of a pair is flat at its tie, so frames pile up there."""
    p = 1 / (1 + np.exp(np.random.default_rng(0).uniform(-8, 8, (40, 100))))
    found = count_modes(list(stats.entropy(np.stack([p, 1 - p]), base=2, axis=0)))
    assert [mode["bits"] for mode in found["modes"]] == pytest.approx([0.05, 0.91], abs=0.03)
    assert found["test"]["p"] < 0.01


def test_values_that_are_all_the_same_have_one_mode_and_no_test() -> None:
    found = count_modes([np.zeros(20), np.zeros(5)])
    assert found["modes"] == [{"bits": 0.0, "share": 1.0}]
    assert found["test"] is None
    assert np.isfinite(dip_test([np.array([0.0, 0.0, 1.0])])["p"])  # one utterance of three frames


def test_shares_and_histograms_count_every_frame() -> None:
    p, q = bits(0.3, 1.4), bits(0.1)
    found = describe_entropies({"visible": p, "masked": p[::-1], "target": q, "plain": []}, 16)
    flat = np.concatenate(p)
    curve = found["distributions"]["visible"]
    assert list(found["distributions"]) == ["visible", "masked", "target"]
    assert curve["above"] == {f"{m:g}": round(sum(v > m for v in flat) / len(flat), 4) for m in (0.5, 1.0, 2.0)}
    assert sum(curve["counts"]) == len(flat)
    joint = np.array(found["joint"]["visible"]["counts"])
    assert joint.sum() == len(flat)
    edges = np.linspace(0, 4, 61)
    np.testing.assert_array_equal(joint.sum(0), np.histogram(flat, edges)[0])
    np.testing.assert_array_equal(joint.sum(1), np.histogram(np.concatenate(q), edges)[0])
    for path, entropies in (("visible", p), ("masked", p[::-1])):
        expected = stats.pearsonr(np.concatenate(entropies), np.concatenate(q))[0]
        assert found["joint"][path]["correlation"] == pytest.approx(expected, abs=1e-4)


def test_the_answer_follows_from_the_numbers() -> None:
    def say(soft: float, target: float, shared: float) -> str:
        names = ("path_above_1_bit", "target_above_1_bit", "target_soft_where_path_is")
        return describe_softness("masked", dict(zip(names, (soft, target, shared), strict=True)))

    assert "in the prediction, not in the target" in say(0.4, 0.02, 0.05)
    assert "the target shares the softness" in say(0.4, 0.4, 0.9)
    assert "shares a part" in say(0.4, 0.2, 0.3)
    assert "The predictor at masked frames is hardly ever soft" in say(0.0, 0.0, 0.0)


def test_the_findings_of_a_run_state_their_audio() -> None:
    found = findings()["entropy"]
    assert found["run"] | {"temperature": 3.0, "utterances": 12, "left_out": 0, "phase": 2} == found["run"]
    assert set(found["distributions"]) == {"visible", "masked", "target", "plain"}
    assert found["distributions"]["plain"]["mean"] < found["distributions"]["target"]["mean"]  # 3 softens
    assert found["limit_bits"] == pytest.approx(math.log2(12), abs=1e-3)


def test_the_command_writes_json_and_figures_which_are_redrawn_without_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(modes, "NULL_SAMPLES", 20)
    folder = str(tmp_path / "out")
    options = ["--data", str(corpus()), "--utterances", "3", "--out", folder]
    dispatch(["analyze", "entropy", str(trained()), *options])
    assert "above 1 bit" in capsys.readouterr().out
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(drawn) == {"entropy.json", "entropy.svg", "entropy.png"}
    assert drawn["entropy.png"][:4] == b"\x89PNG"
    (tmp_path / "out" / "entropy.svg").unlink()
    (tmp_path / "empty").mkdir()
    dispatch(["analyze", "entropy", str(tmp_path / "empty"), "--redraw", "--out", folder])
    assert (tmp_path / "out" / "entropy.svg").read_bytes() == drawn["entropy.svg"]


def test_a_missing_matplotlib_is_reported_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out"
    for command in (
        ["analyze", "entropy", str(trained()), "--data", str(corpus()), "--out", str(out)],
        ["figures", str(trained()), "--out", str(out)],
    ):
        with pytest.raises(UserError, match=r"drawing needs matplotlib: pip install 'sjepa\[figures\]'"):
            dispatch(command)
    assert not out.exists()


def test_figures_of_hard_targets_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = describe_entropies(
        {"visible": bits(0.5), "masked": bits(0.7), "target": [np.zeros(50)] * 40, "plain": bits(0.2)}, 16
    )
    assert found["joint"]["visible"]["correlation"] is None
    json.dumps(found, allow_nan=False)
    draw_entropy(found, tmp_path / "hard")
    assert (tmp_path / "hard.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("bits", "p", "words"),
    [
        ((0.0, 0.91), 0.004, "2 clear maxima at 0.00, 0.91 bits; the dip test rejects a single mode (p = 0.004)"),
        ((0.0, 0.91), 1.0, "2 clear maxima at 0.00, 0.91 bits, but the dip test does not reject a single mode (p = 1)"),
        ((6.59,), 0.3, "1 clear maximum at 6.59 bits; the dip test does not reject a single mode (p = 0.3)"),
        ((6.59,), 0.0, "1 clear maximum at 6.59 bits, but the dip test rejects a single mode (p < 0.001)"),
    ],
)
def test_maxima_and_the_test_of_one_mode_are_reported_separately(bits: tuple[float, ...], p: float, words: str) -> None:
    assert describe_modes({"modes": [{"bits": each} for each in bits], "test": {"p": p}}) == words
