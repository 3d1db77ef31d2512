"""`sjepa plan` and `sjepa bench data`: arithmetic that can be done by hand, figures that make sense."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sjepa import UserError
from sjepa.commands.plan import run, work_of
from sjepa.config import Config, from_toml, load_preset
from sjepa.data.plan import Machine, Work, all_reduce_seconds, all_reduce_share, describe_repetition, rates
from sjepa.speed.data import format_table, measure
from sjepa.train.loop import pretrain


def test_the_papers_run_by_hand() -> None:
    work = work_of(load_preset("paper"), 83_000)
    assert work.steps == 800_000
    assert work.audio_seconds == 800_000 * 2880
    assert work.epochs == pytest.approx(800_000 * 2880 / 83_000 / 3600)
    head = 2 * (768 * 768 + 768) + 768 * 500 + 500
    layer = 4 * (768 * 768 + 768) + 768 * 1536 + 1536 + 1536 * 768 + 768 + 4 * 768
    predictor = 768 + 750 * 768 + layer + 768 * 768 + 768
    assert work.gradient_bytes == 4 * (51_843_712 + predictor + head)
    assert work.statistics_bytes == 4 * 500 * (1 + 2 * 768)


@pytest.mark.parametrize("preset", ["half-hour", "tiny"])
def test_the_other_presets_are_planned_too(preset: str) -> None:
    config = load_preset(preset)
    work = work_of(config, 13)
    assert work.audio_seconds == config.steps * config.batches.seconds


def test_a_corpus_that_is_too_small_for_its_steps_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--hours", "83000"])  # the paper's: 7.7 epochs
    assert "are few" not in capsys.readouterr().out
    run(["--hours", "13.2", "--preset", "half-hour"])  # the study's: 101
    assert "are few" not in capsys.readouterr().out
    run(["--hours", "100"])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("100 hours are few for 800,000 steps: each is used 6,400 times")
    assert "about 25,000 steps (200 epochs)" in line
    config = from_toml("[phase1]\nsteps = 10\nbatch_seconds = 60.0\n[phase2]\nsteps = 30\n", "test")
    assert config.audio_seconds == 10 * 60 + 30 * 2880
    assert describe_repetition(config.audio_seconds, config.steps, 1.0) == ""


def test_a_run_says_at_its_start_that_its_corpus_is_too_small(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    config = micro(phase2={"steps": 10_000})
    assert pretrain(config, corpus, tmp_path / "run", show=False, last_phase=1)
    assert "hours are few for 10,006 steps" in capsys.readouterr().out


def test_a_ring_sends_twice_the_gradients_less_its_own_part() -> None:
    assert all_reduce_seconds(8e9, 8, 1e9) == pytest.approx(14.0)
    assert all_reduce_seconds(8e9, 1, 1e9) == 0.0
    work = Work(1000, 10, 2880, 200_000_000, 0)
    # 360 s at 3,600 s/s take 100 ms; 200 MB over 50 GB/s at 8 GPUs take 7 ms.
    assert all_reduce_share(work, 3600, 360, 8, 50e9) == pytest.approx(7 / 107)


def test_the_slowest_resource_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    work = Work(1000, 10, 2880, 0, 0)
    assert rates(work, Machine(8, 1000, 16, 3000, 25)) == pytest.approx(
        {"GPUs": 8000, "decoding": 48_000, "network": 25e9 / 8 / 17_000}
    )
    for arguments, name in (
        (["2000"], "GPUs"),
        (["2000", "--cores", "4"], "decoding"),
        (["2000", "--network", "2"], "network"),
    ):
        run(["--hours", "83000", "--throughput", *arguments])
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "bottleneck" in line)
        assert line.split()[0] == name


def test_rates_come_from_benchmark_files_and_nonsense_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step.json").write_text(json.dumps({"audio_per_second": 1234.0}))
    run(["--hours", "10", "--throughput", str(tmp_path / "step.json")])
    assert "8 × 1,234" in capsys.readouterr().out
    (tmp_path / "empty.json").write_text("{}")
    for arguments, words in (
        (["--throughput", str(tmp_path / "empty.json")], "neither a number nor a JSON file that has audio_per_second"),
        (["--throughput", "fast"], "neither a number"),
        (["--throughput", "-3"], "must be above 0"),
        (["--gpus", "0"], "--gpus 0: must be above 0"),
    ):
        with pytest.raises(UserError, match=words):
            run(["--hours", "10", *arguments])


def test_bench_data_measures_every_format_and_the_loader(corpus: Path) -> None:
    results = json.loads(json.dumps(measure(str(corpus), seconds=0.2, workers=1)))
    assert set(results["decode"]) == {"wav", "flac", "opus", "mp3"}
    assert set(results["loader"]) == {"as given", "flac shards", "int16 shards"}
    for row in (*results["decode"].values(), *results["loader"].values()):
        assert row["audio_per_second"] > 1
    assert "flac shards" in format_table(results)
