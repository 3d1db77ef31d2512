"""`sjepa plan` and `sjepa bench data`: results that can be computed by hand, and plausible measurements."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sjepa import UserError
from sjepa.commands.plan import planned_work, read_times, run
from sjepa.config import Config
from sjepa.settings_file import from_toml, load_preset
from sjepa.speed.data import format_table, measure
from sjepa.train.estimate import (
    Machine,
    PhaseWork,
    StepTime,
    Work,
    all_reduce_seconds,
    compute_seconds,
    describe_repetition,
    rates,
    step_cost,
    useful_gpus,
)
from sjepa.train.loop import pretrain


def test_the_papers_run_by_hand() -> None:
    work = planned_work(load_preset("paper"), 83_000)
    assert work.steps == 800_000
    assert work.audio_seconds == 800_000 * 2880
    assert [phase.reads_encoder for phase in work.phases] == [False, True]
    assert work.utterances_per_batch == 192
    assert work.repetitions == pytest.approx(800_000 * 2880 / 83_000 / 3600)
    head = 2 * (768 * 768 + 768) + 768 * 500 + 500
    layer = 4 * (768 * 768 + 768) + 768 * 1536 + 1536 + 1536 * 768 + 768 + 4 * 768
    predictor = 768 + 750 * 768 + layer + 768 * 768 + 768
    assert work.gradient_bytes == 4 * (51_843_712 + predictor + head)
    assert work.statistics_bytes == 4 * (500 * (1 + 2 * 768) + 2)  # counts, sums, squares; likelihood and frames
    assert work.checkpoint_bytes == 3 * work.gradient_bytes + 4 * 51_843_712


def test_more_masks_per_utterance_take_more_time() -> None:
    one, four = (step_cost(work(), PhaseWork(8, 360, False, views), machine(1)).compute for views in (1, 4))
    assert four == pytest.approx(2.2 * one)


@pytest.mark.parametrize("preset", ["half-hour", "tiny"])
def test_the_other_presets_are_planned_too(preset: str) -> None:
    config = load_preset(preset)
    work = planned_work(config, 13)
    assert work.audio_seconds == config.steps * config.batches.seconds


def test_the_plan_states_that_it_assumes_an_h200(capsys: pytest.CaptureFixture[str]) -> None:
    """Above all for presets that run on a laptop, which are planned for one device."""
    run(["--hours", "10", "--preset", "tiny"])
    output = capsys.readouterr().out
    assert output.startswith("10 hours on 1 GPU, 1 node\n")
    assert "  rates     of an H200. For this computer" in output
    assert "`sjepa bench step --preset tiny --out FILE`, then --throughput FILE" in output
    assert " MB every 200 steps" in output
    run(["--hours", "10", "--preset", "tiny", "--throughput", "20"])
    output = capsys.readouterr().out
    assert "H200" not in output
    assert "  time      5.1 minutes at 20 s of audio per second" in output


def test_muon_keeps_one_moment_of_matrices() -> None:
    work = planned_work(load_preset("half-hour"), 13)
    encoder = 6 * (4 * 768 * 768 + 2 * 768 * 3072)
    predictor = 4 * 768 * 768 + 2 * 768 * 1536
    assert work.checkpoint_bytes == 3 * work.gradient_bytes + 4 * (51_843_712 - encoder - predictor)


def test_a_corpus_that_is_too_small_for_its_steps_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--hours", "83000"])  # the paper's: 7.7 times
    assert "is not much" not in capsys.readouterr().out
    run(["--hours", "13.2", "--preset", "half-hour"])  # the study's: up to 61 times
    assert "is not much" not in capsys.readouterr().out
    run(["--hours", "100"])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("100 hours of audio is not much for 800,000 steps: the run uses them up to 6,400 times")
    assert "about 25,000 steps, which use them 200 times" in line
    assert describe_repetition(3600.0 * 1000 * 500, 10, 1000).startswith("1,000 hours of audio is not much")
    config = from_toml("[phase1]\nsteps = 10\nbatch_seconds = 60.0\n[phase2]\nsteps = 30\n", "test")
    assert config.audio_seconds() == 10 * 60 + 30 * 2880
    assert [config.audio_seconds(step) for step in (4, 10, 25, 40)] == [6 * 60 + 30 * 2880, 30 * 2880, 15 * 2880, 0]
    assert describe_repetition(config.audio_seconds(), config.steps, 1.0) == ""


def test_a_run_reports_at_its_start_that_its_corpus_is_small(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    config = micro(phase2={"steps": 10_000})
    assert pretrain(config, corpus, tmp_path / "run", show=False, last_phase=1)
    assert "hours of audio is not much for 10,006 steps" in capsys.readouterr().out


def machine(gpus: int, rate: float = 1000.0, **changes: Any) -> Machine:
    return Machine(gpus, (StepTime(360.0, rate, rate),), **{"cores": 16, "decode_rate": 3000, "network": 25} | changes)


def work(steps: int = 10, gradient_bytes: int = 0, checkpoint_bytes: int = 0, utterances_per_batch: int = 192) -> Work:
    return Work(1000, (PhaseWork(steps, 2880, False),), gradient_bytes, 0, checkpoint_bytes, 2000, utterances_per_batch)


def test_rings_send_twice_the_gradients_less_their_own_part_and_a_nodes_gpus_share_its_cards() -> None:
    size = 240e6
    assert all_reduce_seconds(size, machine(1)) == 0.0
    inside = 50e-6 + 2 * 7 / 8 * 240e6 / 315e9
    assert all_reduce_seconds(size, machine(8)) == pytest.approx(inside)
    one_card = 2 * 7 / 8 * 240e6 / (50e9 * 0.9)  # between eight nodes
    assert all_reduce_seconds(size, machine(64)) == pytest.approx(inside + one_card)
    assert all_reduce_seconds(size, machine(64, cards=8)) == pytest.approx(inside + one_card / 8)


def test_only_gradients_that_computing_does_not_hide_cost_time() -> None:
    phase = work().phases[0]
    fast = step_cost(work(gradient_bytes=240_000_000), phase, machine(8, 3600))  # 100 ms, 26 of them behind gradients
    assert fast.compute == pytest.approx(0.1)
    assert fast.gradients == pytest.approx(all_reduce_seconds(0.07 * 240e6, machine(8)))
    late = step_cost(work(gradient_bytes=240_000_000), phase, machine(64, 36_000))  # 1.25 ms
    hidden = all_reduce_seconds(0.93 * 240e6, machine(64)) - 0.26 * 0.00125
    assert late.gradients == pytest.approx(hidden + all_reduce_seconds(0.07 * 240e6, machine(64)))


def test_a_checkpoint_costs_its_copy_and_what_a_slow_disk_has_not_written_when_the_next_is_due() -> None:
    costs = [
        step_cost(work(checkpoint_bytes=10**9), work().phases[0], machine(8, 36_000, disk=disk)).checkpoint
        for disk in (1.0, 0.01)
    ]
    assert costs == pytest.approx([0.1 / 2000, (0.1 + 100 - 2000 * 0.01005) / 2000])


def test_small_steps_are_slower_per_second_of_audio() -> None:
    times = (StepTime(60, 6000, 5000), StepTime(360, 9000, 8000))  # 10 ms and 40 ms, 12 ms and 45 ms
    for audio, plain, encoder in ((60, 10, 12), (360, 40, 45), (210, 25, 28.5), (45, 8.5, 10.35), (720, 80, 90)):
        found = [1e3 * compute_seconds(times, audio, reads_encoder) for reads_encoder in (False, True)]
        assert found == pytest.approx([plain, encoder])


def test_the_plan_states_when_more_gpus_hardly_help(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--hours", "83000", "--gpus", "64"])
    output = capsys.readouterr().out
    rows = {int(line.split()[0]): line for line in output.splitlines() if line.strip()[:1].isdigit() and " / " in line}
    assert set(rows) == {1, 2, 4, 8, 16, 32, 64, 128}
    assert "45.0 s" in rows[64]
    assert "32 GPUs would be only 1.23 times as fast as 16, so more GPUs hardly help." in output
    # At 45 s per GPU the rate of large steps does not hold: it would be 3.3 hours.
    found = [float(line.split()[1]) for line in output.splitlines() if line.startswith("  time")]
    assert found[0] > 3.3
    gpus, gain = useful_gpus(work(gradient_bytes=240_000_000), machine(8, 9000))
    assert 1 < gpus < 192
    assert 1 < gain < 1.4
    assert useful_gpus(work(utterances_per_batch=6), machine(1)) == (4, 0.0)


def test_the_slowest_resource_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert rates(work(), machine(8)) == pytest.approx(
        {"GPUs": 8000, "decoding": 48_000, "network": 25e9 / 8 / 17_000}, rel=1e-3
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
    for batch, rate in ((3, 100.0), (24, 900.0)):
        facts = {"batch": batch, "seconds": 15.0, "audio_per_second": rate}
        facts |= {"phase1": {"audio_per_second": 2 * rate}, "phase2": {"audio_per_second": rate}}
        (tmp_path / f"step-{batch}.json").write_text(json.dumps(facts))
    files = [str(tmp_path / f"step-{batch}.json") for batch in (3, 24)]
    assert read_times(files) == [StepTime(45.0, 200.0, 100.0), StepTime(360.0, 1800.0, 900.0)]
    (tmp_path / "empty.json").write_text("{}")
    for arguments, words in (
        (["--throughput", str(tmp_path / "empty.json")], "neither a number nor a JSON file that has audio_per_second"),
        (["--throughput", "fast"], "neither a number"),
        (["--throughput", "1", "2"], "one rate for each size"),
        (["--throughput", "-3"], "must be above 0"),
        (["--gpus", "0"], "--gpus 0: it should be greater than 0"),
    ):
        with pytest.raises(UserError, match=words):
            run(["--hours", "10", *arguments])


def test_a_rate_measured_with_the_masks_of_the_run_counts_them_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`half-hour` has four masks per utterance, and a benchmark of it measures steps with all four."""
    facts: dict[str, Any] = {"batch": 6, "seconds": 6.0, "views": 4, "audio_per_second": 2000.0}
    facts |= {"phase1": {"audio_per_second": 2500.0}, "phase2": {"audio_per_second": 2000.0}}
    (tmp_path / "step.json").write_text(json.dumps(facts))
    run(["--hours", "10", "--preset", "half-hour", "--throughput", str(tmp_path / "step.json"), "--gpus", "1"])
    audio = 12_000 * 40, 60_000 * 40
    seconds = audio[0] / 2500 + audio[1] / 2000
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  time"))
    assert float(line.split()[1]) == pytest.approx(seconds / 60, rel=0.02)
    run(["--hours", "10", "--preset", "half-hour", "--throughput", "2000", "--gpus", "1"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  time"))
    assert float(line.split()[1]) == pytest.approx(sum(audio) / 2000 / 60, rel=0.02)


def test_bench_data_measures_every_format_and_the_loader(corpus: Path) -> None:
    results = json.loads(json.dumps(measure(str(corpus), seconds=0.2, workers=1)))
    assert set(results["decode"]) == {"wav", "flac", "opus", "mp3"}
    assert set(results["loader"]) == {"as given", "flac shards", "int16 shards"}
    for row in (*results["decode"].values(), *results["loader"].values()):
        assert row["audio_per_second"] > 1
    assert "flac shards" in format_table(results)
