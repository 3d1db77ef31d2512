"""Query by example: time warping and the term-weighted value against slower code, and the corpus's own layout."""

import itertools
import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import superb_corpora as corpora
import torch
from scipy.spatial.distance import cdist

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.superb import warping
from sjepa.evaluate.superb.corpora.quesst import Truth
from sjepa.evaluate.superb.queries import LayerSearch, QueryTask
from sjepa.evaluate.superb.tasks import find_entry, make_task
from sjepa.evaluate.superb.term_weighted_value import WEIGHT, maximum_term_weighted_value
from sjepa.evaluate.superb.warping import score_documents, standardise, standardise_scores
from sjepa.evaluate.upstream import load_upstream
from sjepa.model.encoder_config import EncoderConfig
from sjepa.runs.encoder import Encoder


def match_slowly(query: np.ndarray, document: np.ndarray) -> float:
    """Every cell of the table of costs, one after the other."""
    distance = np.exp(cdist(query, document, "cosine")) - 1
    low, high = distance.min(1, keepdims=True), distance.max(1, keepdims=True)
    distance = (distance - low) / np.clip(high - low, 1e-9, None)
    cost = np.full(distance.shape, np.inf)
    for i, j in itertools.product(*map(range, distance.shape)):
        before = 0.0 if i == 0 else min(cost[i - 1, j - step] for step in range(3) if j >= step)
        cost[i, j] = distance[i, j] + before
    return -float(cost[-1].min()) / len(query)


@pytest.mark.parametrize("piece", [warping.PIECE, 50])
def test_time_warping_is_that_of_a_slow_loop(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warping, "PIECE", piece)
    generator = np.random.default_rng(0)
    query = generator.standard_normal((7, 5))
    documents = [generator.standard_normal((frames, 5)) for frames in (12, 3, 20, 1, 9)]
    expected = [match_slowly(query, document) for document in documents]
    scores = score_documents(torch.from_numpy(query), [torch.from_numpy(document) for document in documents])
    assert scores.tolist() == pytest.approx(expected, abs=1e-9)
    single = score_documents(torch.from_numpy(query).float(), [torch.from_numpy(d).float() for d in documents])
    assert single.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_query_of_less_than_five_frames_is_not_looked_for() -> None:
    assert score_documents(torch.randn(4, 3), [torch.randn(9, 3)] * 2).tolist() == [0.0, 0.0]
    assert standardise_scores(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_features_are_standardised_over_all_of_them() -> None:
    features = [torch.randn(5, 3) * 4 + 2, torch.randn(9, 3) - 1]
    joined = torch.cat(standardise(features)).numpy()
    assert joined.mean(0) == pytest.approx(0, abs=1e-6)
    assert joined.std(0, ddof=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_term_weighted_value_is_its_definition(seed: int) -> None:
    """1 - mean over queries of (misses / targets + weight x false alarms / other trials), at the best threshold."""
    generator = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(60)]
    truth = Truth({q: frozenset(generator.choice(names, 4, replace=False).tolist()) for q in "abc"}, 60 + 40)
    scores = {
        q: {d: round(float(generator.normal() + (2.5 if d in truth.documents.get(q, ()) else 0)), 1) for d in names}
        for q in "abx"  # c has no scores; x is in no document
    }
    thresholds = sorted({score for each in scores.values() for score in each.values()} | {100.0})
    values = []
    for threshold in thresholds:
        lost = []
        for query, targets in truth.documents.items():
            detected = {d for d, score in scores.get(query, {}).items() if score >= threshold}
            misses = len(targets - detected) / len(targets)
            alarms = len(detected - targets) / (truth.trials - len(targets))
            lost.append(misses + WEIGHT * alarms)
        values.append(1 - np.mean(lost))
    assert maximum_term_weighted_value(scores, truth) == pytest.approx(100 * max(values))
    assert pytest.approx(12.49) == WEIGHT


def test_perfect_and_worthless_scores() -> None:
    truth = Truth({"a": frozenset({"x"}), "b": frozenset({"y"})}, 3)
    perfect = {"a": {"x": 2.0, "y": 0.0, "z": 0.0}, "b": {"x": 0.0, "y": 2.0, "z": 0.0}}
    assert maximum_term_weighted_value(perfect, truth) == pytest.approx(100)
    wrong = {"a": {"x": 0.0, "y": 2.0, "z": 2.0}, "b": {"x": 2.0, "y": 0.0, "z": 2.0}}
    assert maximum_term_weighted_value(wrong, truth) == 0.0  # nothing is detected at a threshold above all


def test_documents_without_a_score_are_detected_only_below_all_scores() -> None:
    """A threshold below all scores detects every document. It helps only if there are no others to detect falsely."""
    many = frozenset(f"d{i}" for i in range(30))
    assert maximum_term_weighted_value({}, Truth({"a": many}, 100)) == 0.0
    assert maximum_term_weighted_value({"a": {"d3": 1.0}}, Truth({"a": many}, 100)) == pytest.approx(100 / 30)
    assert maximum_term_weighted_value({"a": {"d3": 1.0}}, Truth({"a": many}, 30)) == pytest.approx(100)


@pytest.fixture(scope="module")
def quesst(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("espeakng_loader")
    return corpora.quesst(tmp_path_factory.mktemp("qbe"))


def test_english_is_looked_for_and_all_languages_count(quesst: Path) -> None:
    task = make_task("qbe", quesst)
    assert isinstance(task, QueryTask)
    assert find_entry("qbe").search is LayerSearch
    (fold,) = task.folds
    assert [len(part) for part in (fold.train, fold.dev, fold.test)] == [8, 4, 4]
    assert {u.sound for u in fold.utterances} == {"lowered"}
    assert len(task.truths["dev"].documents) == 5  # with the query in another language
    assert task.truths["test"].trials == 9
    assert task.truths["test"].documents["quesst14_eval_0001"] == {"quesst14_00001", "quesst14_00005"}
    inside = make_task("qbe", quesst / "quesst14Database")
    assert inside.folds == task.folds


def test_the_layer_that_is_best_on_dev_is_tested(quesst: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    Encoder(EncoderConfig(16, 1, 2, 16, conv_channels=8, position_kernel=8, position_groups=2)).save_pretrained(
        tmp_path / "encoder"
    )
    task = make_task("qbe", quesst)
    search = LayerSearch(task, load_upstream(str(tmp_path / "encoder")), tmp_path / "out")
    results = search.run(search.candidates(None, False))
    dev = results["dev"]["by_layer"]
    assert list(dev) == ["0", "1"]
    assert dev[str(results["layer"])] == max(dev.values())
    tree = ElementTree.parse(tmp_path / "out" / "benchmark.stdlist.xml").getroot()
    assert [t.get("termid") for t in tree] == [f"quesst14_eval_{i:04d}" for i in range(1, 5)]
    assert [len(t) for t in tree] == [8] * 4
    scores = {
        str(t.get("termid")): {str(d.get("file")): float(str(d.get("score"))) for d in t} for t in tree
    }  # the submitted list alone gives the result
    assert maximum_term_weighted_value(scores, task.truths["test"]) == pytest.approx(results["metrics"]["mtwv"])
    again = LayerSearch(task, load_upstream(str(tmp_path / "encoder")), tmp_path / "out")
    assert again.run(again.candidates(None, False)) == results


def test_words_are_found_by_their_sound(quesst: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["superb", "qbe", "--encoder", "mfcc", "--data", str(quesst), "--out", str(tmp_path)])
    rows = [line.split("\t") for line in (tmp_path / "predictions.txt").read_text().splitlines()]
    scores = {held: [float(score) for _, score, truth in rows if truth == held] for held in "01"}
    assert (len(scores["0"]), len(scores["1"])) == (4 * 6, 4 * 2)
    assert np.mean(scores["1"]) > np.mean(scores["0"]) + 0.5
    assert json.loads((tmp_path / "results.json").read_text())["layer"] == 0
    assert "qbe on mfcc (0 parameters): test mtwv" in capsys.readouterr().out


def test_lite_counts_what_it_looks_for(quesst: Path) -> None:
    task = make_task("qbe", quesst, lite=True)
    assert isinstance(task, QueryTask)
    assert task.truths["dev"].trials == 8
    assert len(task.truths["dev"].documents) == 4


def test_lite_needs_a_query_that_occurs_in_its_documents(quesst: Path, tmp_path: Path) -> None:
    """Here the only query that occurs in a document is in another language, which the lite protocol leaves out."""
    root = shutil.copytree(quesst, tmp_path / "copy")
    file = root / "quesst14Database" / "scoring" / "groundtruth_quesst14_eval" / "quesst14_eval.rttm"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "eval_0999" in line))
    make_task("qbe", root)
    with pytest.raises(UserError, match=r"8 documents, and none of them has a query of the test part.*without --lite"):
        make_task("qbe", root, lite=True)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("language_key_dev.lst", None, r"there is no .*language_key_dev\.lst"),
        ("language_key_dev.lst", "quesst14Database/x.wav czech\n", "has no files of nnenglish"),
        ("language_key_dev.lst", "x\n", "line 1: 'x' is not a path and a language"),
        ("language_key_eval.lst", "quesst14Database/no.wav nnenglish\n", "labels without audio: .*no.wav"),
        ("groundtruth_quesst14_dev/quesst14_dev.rttm", "", "no document contains any query"),
        ("groundtruth_quesst14_dev/quesst14_dev.tlist.xml", "<x", "is not XML"),
        ("groundtruth_quesst14_dev/quesst14_dev.rttm", None, r"has 0 files \*\.rttm; expected exactly one"),
    ],
)
def test_a_broken_corpus_is_refused(quesst: Path, tmp_path: Path, file: str, text: str | None, message: str) -> None:
    root = shutil.copytree(quesst, tmp_path / "copy")
    path = root / "quesst14Database" / "scoring" / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        make_task("qbe", root)
