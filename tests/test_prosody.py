"""Pitch and energy on signals with known values, stress and tone by their labels, and the probes."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from sjepa.cli import dispatch
from sjepa.evaluate.prosody import (
    LEFT_OUT,
    choose_groups,
    compute_log_energy,
    estimate_pitch,
    label_frames,
    parse_stress,
    parse_tone,
    regression_probe,
)


def voice(frequency: float | np.ndarray, seconds: float = 1.0) -> np.ndarray:
    """Twelve harmonics of a fundamental, which may change over time."""
    phase = 2 * np.pi * np.cumsum(np.broadcast_to(frequency, int(16_000 * seconds))) / 16_000
    tone: np.ndarray = sum(np.sin(k * phase) / k for k in range(1, 13))
    return 0.1 * tone


@pytest.mark.parametrize("frequency", [80.0, 113.7, 220.0, 381.0])
def test_pitch_is_the_fundamental(frequency: float) -> None:
    centres = np.arange(0.1, 0.9, 0.02)
    found = estimate_pitch(voice(frequency), centres)
    np.testing.assert_allclose(found, frequency, rtol=0.01)


def test_pitch_follows_a_glide_and_is_missing_in_noise_and_silence() -> None:
    centres = np.arange(0.1, 0.9, 0.02)
    glide = np.linspace(100, 200, 16_000)
    np.testing.assert_allclose(estimate_pitch(voice(glide), centres), np.interp(centres, [0, 1], [100, 200]), rtol=0.03)
    noise = 0.1 * np.random.default_rng(0).standard_normal(16_000)
    assert np.isnan(estimate_pitch(noise, centres)).mean() > 0.9
    assert np.isnan(estimate_pitch(np.zeros(16_000), centres)).all()


def test_energy_is_in_decibels() -> None:
    samples = 0.1 * np.sin(2 * np.pi * 500 * np.arange(16_000) / 16_000)
    found = compute_log_energy(samples, np.array([0.3, 0.5]))
    np.testing.assert_allclose(found, 10 * np.log10(0.005), atol=0.01)
    np.testing.assert_allclose(compute_log_energy(samples / 10, np.array([0.5])), found[1] - 20, atol=0.01)
    assert compute_log_energy(np.zeros(1000), np.array([0.0])) == [-100.0]


def test_stress_and_tone_are_read_from_labels() -> None:
    stresses = {"AH0": "0", "EY1": "1", "IH2": "2", "K": "", "SIL": "", "ˈa": "1", "ˌo": "2", "a4": ""}
    assert {phone: parse_stress(phone) for phone in stresses} == stresses
    assert [parse_tone(p) for p in ("a4", "ang1", "ma˥˩", "AH0", "K", "SIL", "5")] == ["4", "1", "˥˩", "", "", "", ""]
    kept, labels = label_frames(np.array(["AH0", "K", "EY1"]), parse_stress)
    assert (kept.tolist(), labels.tolist()) == ([0, 2], ["0", "1"])


def test_regression_is_one_for_what_is_linear_and_nothing_for_noise() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((900, 6)).astype(np.float32)
    groups = np.repeat(["a", "b", "c", "d", "e", "f"], 150)
    y = x @ generator.standard_normal(6) + 3
    assert regression_probe(torch.from_numpy(x), y, groups, 3, 0).mean > 0.99
    assert abs(regression_probe(torch.from_numpy(x), generator.standard_normal(900), groups, 3, 0).mean) < 0.1
    assert len(regression_probe(torch.from_numpy(x), y, groups, 3, 0).splits) == 3


def test_regression_without_features_predicts_the_mean_of_the_training_part() -> None:
    """R² compares with that mean, and is 0 also if held-out groups have another one."""
    y = np.arange(60.0) ** 2
    scores = regression_probe(torch.zeros(60, 2), y, np.arange(60) // 10, 3, 0)
    assert scores.splits == [0.0, 0.0, 0.0]


def test_regression_is_scikit_learns_ridge() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = np.random.default_rng(0)
    x, groups = generator.standard_normal((80, 4)), np.arange(80) // 10
    y = x @ generator.standard_normal(4) + generator.standard_normal(80) + groups
    found = regression_probe(torch.from_numpy(x), y, groups, 4, 5)
    order = np.random.default_rng(5).permutation(8)
    for held, score in zip(order.reshape(4, 2), found.splits, strict=True):
        test = np.isin(groups, held)
        a, b = ((part - x[~test].mean(0)) / x[~test].std(0) for part in (x[~test], x[test]))
        ridge = linear_model.Ridge(alpha=1e-3 * len(a)).fit(a, y[~test])
        error, spread = ((y[test] - guess) ** 2 for guess in (ridge.predict(b), y[~test].mean()))
        assert score == pytest.approx(1 - error.sum() / spread.sum(), rel=1e-6)


def test_probes_of_prosody_need_no_labels(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    rows = ""
    for number in range(9):
        frequency = np.linspace(90 + 10 * number, 250 - 10 * number, 16_000)
        level = np.linspace(0.2, 1.0, 16_000)
        soundfile.write(tmp_path / f"{number}.wav", level * voice(frequency), 16_000)
        rows += json.dumps({"path": f"{number}.wav"}) + "\n"
    (tmp_path / "labels.jsonl").write_text(rows)
    command = ["probe", "--encoder", "logmel", "--data", str(tmp_path), "--prosody", "--out", str(tmp_path / "out")]
    dispatch(command)
    (scores,) = json.loads((tmp_path / "out" / "results.json").read_text())["layers"].values()
    assert set(scores) == {"pitch R²", "energy R²"}
    assert scores["energy R²"]["mean"] > 80
    phones = [[0.0, 0.3, "K"], [0.3, 0.6, "AH0"], [0.6, 1.0, "AH1"]]
    lines = [{"path": f"{n}.wav", "speaker": f"s{n % 3}", "phones": phones} for n in range(9)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    dispatch(command)
    (scores,) = json.loads((tmp_path / "out" / "results.json").read_text())["layers"].values()
    assert "stress linear, held-out speakers" in scores
    assert "tone linear, held-out speakers" not in scores


def write_voices(folder: Path, speakers: list[str]) -> list[str]:
    """Write one utterance per speaker, with a vowel of each stress. Return the command that probes them."""
    phones = [[0.0, 0.3, "K"], [0.3, 0.6, "AH0"], [0.6, 1.0, "AH1"]]
    rows = ""
    for number, speaker in enumerate(speakers):
        soundfile.write(folder / f"{number}.wav", voice(np.linspace(90 + 10 * number, 250, 16_000)), 16_000)
        rows += json.dumps({"path": f"{number}.wav", "speaker": speaker, "phones": phones}) + "\n"
    (folder / "labels.jsonl").write_text(rows)
    return ["probe", "--encoder", "logmel", "--data", str(folder), "--prosody", "--out", str(folder / "out")]


def test_stress_is_not_probed_if_one_speaker_is_named_and_others_are_not(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    dispatch(write_voices(tmp_path, ["ann", "", "ann", "", "ann", ""]))
    (scores,) = json.loads((tmp_path / "out" / "results.json").read_text())["layers"].values()
    assert "stress linear, held-out speakers" not in scores
    assert {"phoneme linear, random frames", "pitch R²", "energy R²"} <= set(scores)


def test_pitch_and_energy_of_utterances_without_a_speaker_are_left_out_if_others_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unnamed speaker may be one that is held out."""
    pytest.importorskip("sklearn")
    found = []
    for name, unnamed in (("some", 3), ("none", 0)):
        (tmp_path / name).mkdir()
        command = write_voices(tmp_path / name, ["ann", "bob", "eve"] + unnamed * [""])
        lines = [json.loads(line) for line in (tmp_path / name / "labels.jsonl").read_text().splitlines()]
        rows = [json.dumps(line | {"phones": []}) + "\n" for line in lines]
        (tmp_path / name / "labels.jsonl").write_text("".join(rows))
        dispatch(command)
        (scores,) = json.loads((tmp_path / name / "out" / "results.json").read_text())["layers"].values()
        found.append({key: scores[key]["splits"] for key in ("pitch R²", "energy R²")})
    assert found[0] == found[1]
    printed = capsys.readouterr().out
    assert "accuracy or R² in percent over splits" in printed
    assert "probes with held-out speakers leave out 3 utterances without a speaker" in printed


def test_groups_are_speakers_if_two_are_known_and_otherwise_utterances() -> None:
    assert choose_groups(["bob", "", "ann", "bob"], [4, 5, 7, 9]).tolist() == [1, LEFT_OUT, 0, 1]
    for speakers in (["ann", "", "ann"], ["", "", ""]):
        assert choose_groups(speakers, [4, 5, 7]).tolist() == [4, 5, 7]
