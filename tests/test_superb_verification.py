"""Speaker verification: trimmed silence, the x-vector, the loss and the equal error rate against slower code."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import superb_corpora as corpora
import torch
from sklearn.metrics import roc_curve

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.superb import verification
from sjepa.evaluate.superb.metrics import equal_error_rate
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.sound import HOLD, LEVEL, WINDOW, Sound, prepare_waveform, trim_silence
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import find_entry, make_task
from sjepa.evaluate.superb.verification import SpeakerHead, VerificationTask
from sjepa.evaluate.upstream import load_upstream


def trim_slowly(samples: np.ndarray) -> np.ndarray:
    """sox's state machine, sample by sample: look for speech, copy it, and start again after a pause."""
    kept: list[float] = []
    held: list[float] = []
    window = [0.0] * WINDOW
    copying = False
    for number, value in enumerate(samples.astype(float)):
        window = [*window[1:], value * value]
        loud = np.sqrt(sum(window) / WINDOW) > LEVEL
        if not copying:
            held = [*held, samples[number]] if loud else []
            if len(held) >= HOLD:
                kept, held, copying = kept + held, [], True
        elif loud:
            kept, held = [*kept, *held, samples[number]], []
        else:
            held.append(samples[number])
            if len(held) >= HOLD:
                held, copying, window = [], False, [0.0] * WINDOW
    return np.array(kept + (held if copying else []), np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_silence_goes_as_sox_takes_it_out(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pieces = []
    for _ in range(6):
        level = generator.choice([0.0, 0.0005, 0.0011, 0.05])
        pieces.append(level * generator.standard_normal(int(generator.integers(300, 4000))))
    samples = np.concatenate(pieces).astype(np.float32)
    assert np.array_equal(trim_silence(samples), trim_slowly(samples))


def test_a_waveform_is_lowered_by_three_decibels_and_digital_silence_leaves_nothing() -> None:
    samples = np.full(8000, 0.5, np.float32)
    assert prepare_waveform(samples, Sound.LOWERED) == pytest.approx(0.5 * 10 ** (-3 / 20))
    assert len(prepare_waveform(samples, Sound.TRIMMED)) == 8000
    assert len(trim_silence(np.zeros(8000, np.float32))) == 0
    assert prepare_waveform(samples, Sound.UNCHANGED) is samples


@pytest.mark.parametrize("seed", range(20))
def test_the_equal_error_rate_is_that_of_scikit_learns_curve(seed: int) -> None:
    from scipy.interpolate import interp1d
    from scipy.optimize import brentq

    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, 60)
    labels[:2] = 0, 1
    scores = generator.standard_normal(60) + labels * generator.uniform(0, 3)
    if seed % 2:
        scores = scores.round(1)  # with ties
    false, true, _ = roc_curve(labels, scores)
    expected = brentq(lambda x: 1 - x - interp1d(false, true)(x), 0, 1)
    assert equal_error_rate(scores.tolist(), [str(label) for label in labels]) == pytest.approx(
        100 * expected, abs=1e-6
    )


def test_the_equal_error_rate_of_a_slow_loop() -> None:
    """With as many pairs of each kind and no ties, some threshold has equally many errors of both kinds."""
    generator = np.random.default_rng(0)
    labels = np.array([0, 1] * 25)
    scores = generator.standard_normal(50) + labels
    rates = [
        (np.mean(scores[labels == 0] >= threshold), np.mean(scores[labels == 1] < threshold))
        for threshold in [*scores, np.inf]
    ]
    (expected,) = {alarm for alarm, miss in rates if alarm == miss}
    assert equal_error_rate(scores.tolist(), [str(label) for label in labels]) == pytest.approx(100 * expected)
    assert equal_error_rate([0.9, 0.8, 0.1], ["1", "1", "0"]) == 0.0
    assert equal_error_rate([0.1, 0.2, 0.9], ["1", "1", "0"]) == 100.0


def test_the_x_vector_of_an_utterance_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    head = SpeakerHead(8, 3).eval()
    x = torch.randn(2, 40, 8)
    x[1, 25:] = 0
    both = head(x, torch.tensor([40, 25]))
    alone = head(x[1:, :25], torch.tensor([25]))
    assert torch.allclose(both[1], alone[0], atol=1e-6)
    assert torch.allclose(both.norm(dim=1), torch.ones(2))
    with pytest.raises(UserError, match="an utterance has 10 frames of speech; an x-vector needs 16"):
        head(x, torch.tensor([40, 10]))


@pytest.mark.parametrize("training", [False, True])
def test_the_x_vector_is_that_of_convolutions_one_utterance_at_a_time(training: bool) -> None:
    torch.manual_seed(0)
    head = SpeakerHead(8, 3).train(training)
    x, frames = torch.randn(3, 40, 8), [40, 25, 39]
    found = head(x, torch.tensor(frames))
    for row, count in enumerate(frames):
        y = head.projection(x[row]).t()
        for layer, (size, dilation) in zip(head.layers, ((5, 1), (3, 2), (3, 3), (1, 1), (1, 1)), strict=True):
            kernel = layer.weight.view(len(layer.weight), size, -1).transpose(1, 2)
            y = torch.relu(torch.nn.functional.conv1d(y, kernel, layer.bias, dilation=dilation))
        y = y[:, : count - 14 + training]  # in training with one frame of padding, if there is any
        vector = torch.relu(head.vector(torch.cat([y.mean(1), y.std(1)])))
        if training:
            vector = torch.relu(head.output(vector))
            wanted = torch.cosine_similarity(vector[None], head.speakers.t())
        else:
            wanted = vector / vector.norm()
        torch.testing.assert_close(found[row], wanted, atol=1e-5, rtol=1e-4)


def test_the_loss_is_am_softmax_written_out() -> None:
    made = [Utterance(str(i), Path("x"), (name,)) for i, name in enumerate("abc")]
    task = VerificationTask("asv", Recipe(1, 1e-4, 1, 1, 1), [Fold("x", made, made, made)], (), trials={})
    cosines = torch.rand(2, 3) * 2 - 1
    wanted = []
    for row, speaker in zip(cosines, (2, 0), strict=True):
        top = np.exp(30 * (float(row[speaker]) - 0.4))
        others = sum(np.exp(30 * float(row[k])) for k in range(3) if k != speaker)
        wanted.append(-np.log(top / (top + others)))
    loss = task.loss(cosines, torch.tensor([30, 30]), [("c",), ("a",)])
    assert float(loss) == pytest.approx(np.mean(wanted), rel=1e-4)


@pytest.fixture(scope="module")
def voxceleb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("espeakng_loader")
    return corpora.verification(tmp_path_factory.mktemp("asv"))


def test_the_full_protocol_is_s3prls(voxceleb: Path) -> None:
    task = make_task("asv", voxceleb)
    assert isinstance(task, VerificationTask)
    (fold,) = task.folds
    assert len(fold.train) == 5 * 4
    assert fold.dev == fold.test  # SUPERB reports the best look at its trials
    assert len(fold.test) == 3 * 4
    assert len(task.trials["test"]) == 66
    assert sum(trial.same for trial in task.trials["test"]) == 18
    assert {u.sound for u in fold.utterances} == {Sound.TRIMMED}
    assert {u.crop for u in fold.train} == {128_000}
    assert (task.recipe.steps, task.recipe.batch, task.recipe.accumulate, task.recipe.lr) == (200_000, 10, 5, 1e-4)
    assert task.clip == 1000
    assert isinstance(task.optimizer([torch.nn.Parameter(torch.zeros(1))], 1e-4), torch.optim.AdamW)
    parameters = sum(p.numel() for p in task.head(768).parameters())
    widths = 768 * 512 + 512 + (5 + 3 + 3 + 1) * 512**2 + 4 * 512 + 512 * 1500 + 1500
    assert parameters == widths + 3000 * 512 + 512 + 512**2 + 512 + 512 * 5


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An x-vector an eighth as wide, which learns a few voices as well."""
    monkeypatch.setattr(verification, "WIDTH", 64)
    monkeypatch.setattr(verification, "POOLED", 188)


@pytest.mark.usefixtures("narrow")
def test_verification_learns_and_writes_what_the_board_expects(voxceleb: Path, tmp_path: Path) -> None:
    task = make_task("asv", voxceleb)
    task = replace(task, recipe=Recipe(30, 1e-3, 8, 1, 15))
    results = LearningRateSearch(task, load_upstream("logmel"), tmp_path).run([1e-3])
    assert results["metrics"]["eer"] < 35
    lines = (tmp_path / "test_predict.txt").read_text().splitlines()
    assert len(lines) == 66
    assert lines[0].startswith("id10270-video0-00001_id10270-video1-00001 0.")
    assert results["metrics"]["eer"] == min(look["eer"] for look in results["folds"][0]["dev_curve"])


@pytest.mark.usefixtures("narrow")
def test_lite_selects_on_held_out_speakers(voxceleb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = make_task("asv", voxceleb, lite=True)
    (fold,) = task.folds
    parts = [{u.label for u in part} for part in (fold.train, fold.dev, fold.test)]
    assert [len(part) for part in parts] == [3, 2, 3]
    assert not parts[0] & parts[1]
    arguments = ["--encoder", "mfcc", "--data", str(voxceleb), "--lite", "--steps", "2", "--out", str(tmp_path)]
    dispatch(["superb", "asv", *arguments])
    assert "test eer" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["better"] == {"eer": "lower"}
    assert not (tmp_path / "test_predict.txt").exists()  # lite results are not for the board


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 id10270/video0/00001.wav id10270/video1/00001.wav", "line 67: .* is not 1 or 0 and two paths"),
        ("1 id10270/video0/00001.wav id10270/video9/00001.wav", "labels without audio: .*video9/00001.wav"),
    ],
)
def test_trials_that_make_no_sense_are_refused(voxceleb: Path, tmp_path: Path, line: str, message: str) -> None:
    for part in ("dev", "test"):
        (tmp_path / part).symlink_to(voxceleb / part)
    (tmp_path / "veri_test2.txt").write_text((voxceleb / "voxceleb1_test_v2.txt").read_text() + line + "\n")
    with pytest.raises(UserError, match=message):
        make_task("asv", tmp_path)


def test_verification_needs_its_parts(voxceleb: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="verification trains on the speakers in dev"):
        make_task("asv", tmp_path)
    (tmp_path / "dev").symlink_to(voxceleb / "dev")
    with pytest.raises(UserError, match=r"there is no .*voxceleb1_test_v2\.txt"):
        make_task("asv", tmp_path)
    assert find_entry("asv").metrics[0].lower
