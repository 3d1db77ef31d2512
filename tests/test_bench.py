"""`sjepa bench` at small sizes: it runs, and both sides compute the same thing."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_gmm import random_mixture, slow_posterior

from sjepa.errors import UserError
from sjepa.speed import data, encode, gmm, step
from sjepa.speed.contest import summarize, time_alternately
from sjepa.speed.mixtures import draw_frames, naive_posterior, naive_update


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_mixtures_agree_with_the_loop_and_with_scikit_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "gmm.json"
    sizes = "--seconds 1 --batch 1 --components 6 --dimension 5 --fit-frames 600 --fit-components 4 --fit-dimension 3"
    gmm.run([*sizes.split(), "--fit-iterations", "3", "--rounds", "2", "--out", str(out)])
    results = json.loads(out.read_text())
    assert results["online"]["frames"] == 49
    assert results["online"]["largest_difference"]["posterior"] < 1e-5
    assert results["online"]["largest_difference"]["batch_means"] < 1e-3
    for work in ("posterior", "posterior and update"):
        assert {"sjepa", "as written"} == results["online"][work].keys()
    fit = results["fit"]
    assert len(fit["em"]) == 5
    assert fit["em"]["sjepa"]["ratio"] == 1.0
    assert fit["ratio"] == min(row["ratio"] for name, row in fit["em"].items() if name != "sjepa")
    assert max(fit["largest_difference"].values()) < 1e-4
    shown = capsys.readouterr()
    assert "scikit-learn float64, 1 thread" in shown.out
    assert_stages(shown, "Drawing 49 frames", "Timing posteriors: sjepa, as written, 2 times each", "Timing EM")


def test_the_naive_baseline_matches_the_papers_equations() -> None:
    mixture, frames = random_mixture(6, 5, 0), draw_frames(80, 6, 5, seed=2)
    slow = slow_posterior(mixture, frames)
    torch.testing.assert_close(naive_posterior(mixture, frames).double(), slow, rtol=1e-4, atol=1e-5)
    other = random_mixture(6, 5, 0)
    q = slow_posterior(mixture, frames).float()
    naive_update(mixture, frames, q, 0.9, 0.01)
    other.update_online(other.statistics(other.powers(frames), q), 0.9, 0.01)
    for name in ("weights", "means", "variances"):
        torch.testing.assert_close(getattr(mixture, name), getattr(other, name), rtol=1e-4, atol=1e-5)


def test_the_encoder_output_equals_that_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "encode.json"
    encode.run(["--preset", "tiny", "--seconds", "1.5", "--rounds", "2", "--threads", "1", "--out", str(out)])
    results = json.loads(out.read_text())
    assert results["largest_difference"] < 1e-4 * results["largest_output"]
    assert results["encode"].keys() == {"sjepa", "transformers"}
    row = results["encode"]["transformers"]
    assert row["audio_per_second"] == pytest.approx(1.5 / row["ms"] * 1e3)
    assert results["ratio"] == row["ratio"]
    shown = capsys.readouterr()
    assert "audio s/s" in shown.out
    assert_stages(shown, "Making the encoder of tiny", "Timing the encoder: sjepa, transformers, 2 times each")


def test_contestants_take_turns_and_the_first_call_of_a_turn_is_not_timed() -> None:
    calls: list[str] = []
    times = time_alternately(
        "both", {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, torch.device("cpu"), 3
    )
    assert "".join(calls) == "aabb" * 3
    assert all(len(taken) == 3 for taken in times.values())
    assert summarize({"a": [1.0, 2.0, 9.0], "b": [2.0, 6.0, 9.0]}, ours="a") == {
        "a": {"ms": 2.0, "ratio": 1.0},
        "b": {"ms": 6.0, "ratio": 2.0},
    }


def test_the_subjects_of_bench_are_listed_and_unknown_ones_get_a_suggestion() -> None:
    call = [sys.executable, "-m", "sjepa", "bench"]
    listed = subprocess.run(call, capture_output=True, text=True).stdout
    assert all(f"\n  {name} " in listed for name in ("step", "gmm", "encode", "data"))
    refused = subprocess.run([*call, "encoder"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "there is no subject 'encoder' (did you mean encode?)" in refused.stderr


def test_bench_step_times_both_phases_every_part_and_a_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preset", "tiny", "--batch", "2", "--seconds", "1", "--repeats", "1", "--against", "hf"]
    step.run([*arguments, "--out", str(tmp_path / "step.json")])
    results = json.loads((tmp_path / "step.json").read_text())
    assert results["phase1"]["ms"] > 0
    assert results["views"] == 1  # masks per utterance of the preset
    assert results["phase2"]["audio_per_second"] == pytest.approx(2e3 / results["phase2"]["ms"])
    named = {"front end", "position", "stack", "predictor and head", "targets", "optimizer", "moving average"}
    assert named <= set(results["parts_ms"])
    assert results["parts_ms"]["encoder"] > results["parts_ms"]["projection"]
    assert results["peers"]["hf"]["ms"] > 0
    shown = capsys.readouterr()
    assert "encoder, forward and backward" in shown.out
    assert_stages(shown, "Making batches", "steps of phase 1", "steps of phase 2", "each part", "steps of hf")


def test_bench_step_accepts_spaces_between_peers_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert step.parse_peers("hf, torchaudio") == ["hf", "torchaudio"]
    assert step.parse_peers("") == []
    with pytest.raises(UserError, match="--against hugging: unknown; choose from hf, torchaudio"):
        step.run(["--preset", "tiny", "--against", "hf, hugging"])
    assert capsys.readouterr().err == ""  # before any work


def test_bench_data_reports_its_stages_and_checks_for_pyarrow_first(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data.run(["--data", str(corpus), "--seconds", "0.1", "--workers", "1"])
    shown = capsys.readouterr()
    assert "flac shards" in shown.out
    assert_stages(shown, "decoding of wav, flac", f"loader on {corpus}", "Writing flac shards", "Writing int16 shards")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="needs pyarrow"):
        data.run([])
    assert capsys.readouterr().err == ""


def assert_stages(shown: Any, *words: str) -> None:
    """Check that stderr has these stages in this order, and that stdout has none of them."""
    stages = [line for line in shown.err.splitlines() if line.endswith(" ...")]
    places = [next(i for i, line in enumerate(stages) if word in line) for word in words]
    assert places == sorted(places)
    assert " ...\n" not in shown.out
