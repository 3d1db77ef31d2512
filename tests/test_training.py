"""Whole runs at a tiny size: the order of phases, resuming after a kill, two ranks against one."""

import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from conftest import NO_DROPOUT, babble, change
from processes import Command, start_ranks

from sjepa import DiagonalGMM, Encoder, UserError
from sjepa.audio.augment import Draws, change_speed, student_samples
from sjepa.config import Config
from sjepa.data.loader import Batch, BatchReader
from sjepa.data.sampler import BatchPlan
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import to_toml
from sjepa.targets.targets import Targets
from sjepa.train import loop, metrics
from sjepa.train.loop import load_noise, pretrain
from sjepa.train.loss import kl_per_frame
from sjepa.train.run import Run
from sjepa.train.step import find_step_kind, learn, train_step

Make = Callable[..., Config]


def lines(run: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The metrics, without what depends on the clock."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = {"speed", "rank_speed"}
    return [{k: v for k, v in e.items() if k not in clock} for e in events if event in (None, e["event"])]


def arguments(config: Config, corpus: Path, out: Path, folder: Path) -> list[str]:
    """A command that trains."""
    preset = folder / "config.toml"
    preset.write_text(to_toml(config))
    return ["pretrain", "--preset", str(preset), "--data", str(corpus), "--out", str(out)]


def command(config: Config, corpus: Path, out: Path, folder: Path, world_size: int = 1) -> list[str]:
    """The same as a user starts it, with torchrun for several ranks."""
    launch = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(world_size),
        "--master-port",
        str(20_000 + os.getpid() % 20_000),
    ]
    start = [sys.executable, *(launch if world_size > 1 else []), "-m", "sjepa"]
    return [*start, *arguments(config, corpus, out, folder)]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def test_kl_per_frame_is_the_definition() -> None:
    q, logits = torch.softmax(torch.randn(2, 3, 5), -1), torch.randn(2, 3, 5)
    kl, _ = kl_per_frame(q, logits)
    p = torch.softmax(logits.double(), -1)
    for b in range(2):
        for t in range(3):
            slow = sum(float(q[b, t, k]) * float(torch.log(q[b, t, k] / p[b, t, k])) for k in range(5))
            assert float(kl[b, t]) == pytest.approx(slow, abs=1e-5)
    one_hot = torch.eye(5)[torch.tensor([[0, 1, 2], [3, 4, 0]])]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), one_hot.argmax(-1).flatten(), reduction="none")
    torch.testing.assert_close(kl_per_frame(one_hot, logits)[0].flatten(), expected)


def test_the_phases_run_in_the_order_of_the_config(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = micro(phase1={"layer_check_every": 4}, phase2={"layer_check_every": 3, "ema_switch_every": 2, "steps": 8})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    train = lines(tmp_path / "run", "train")
    assert [line["step"] for line in train] == list(range(1, 15))
    first, second = train[:6], train[6:]
    assert all(line["phase"] == 1 and line["visible_loss"] and line["augmented"] for line in first)
    assert all(line["decay"] is None and line["active_layer"] is None for line in first)
    assert [line["visible_loss"] for line in second] == [True] * 2 + [False] * 6
    assert [line["augmented"] for line in second] == [True] * 4 + [False] * 4
    assert [line["decay"] for line in second] == [0.9, 0.9, 0.99, 0.99] * 2
    phases = lines(tmp_path / "run", "phase")
    assert [(p["step"], p["phase"], p["k"], p["targets"]) for p in phases] == [
        (0, 1, 8, "mfcc-gmm"),
        (6, 2, 12, "online-gmm"),
    ]
    checks = lines(tmp_path / "run", "layers")
    assert [check["step"] for check in checks] == [4, 6, 9, 12, 14]
    assert all(len(check["effective_ranks"]) == 2 and min(check["effective_ranks"]) > 1 for check in checks)
    # The active layer at each step is the argmax of the smoothed ranks at the last check before it.
    for line in second:
        last = [check for check in checks if check["step"] < line["step"] or check["step"] == line["step"] == 14][-1]
        if line["step"] not in (9, 12):
            assert line["active_layer"] == max(range(2), key=last["smoothed"].__getitem__)


def test_a_run_directory_explains_itself_and_its_encoder_loads(corpus: Path, tmp_path: Path, micro: Make) -> None:
    run = tmp_path / "run"
    assert pretrain(micro(), corpus, run, show=False)
    names = {path.name for path in run.iterdir()}
    assert {
        "config.toml",
        "run.json",
        "README.txt",
        "metrics.jsonl",
        "checkpoints",
        "encoder",
        "encoder-phase1",
    } <= names
    assert DiagonalGMM.load(run / "gmm-phase1.safetensors").means.shape == (8, 39)
    assert DiagonalGMM.load(run / "gmm-phase2.safetensors").means.shape == (12, 32)
    states = Encoder.from_pretrained(run / "encoder")(torch.randn(1, 16_000)).hidden_states
    assert len(states) == 3
    assert RunFolder(run).checkpoint_steps == [12, 9, 6]  # the last two, and the end of phase 1
    pickled = [path for path in run.rglob("*") if path.suffix in (".pt", ".pth", ".pkl", ".bin", ".ckpt")]
    assert not pickled
    modes = {path.stat().st_mode for path in run.rglob("*") if path.is_file()}
    assert len(modes) == 1  # what one may read of a run, one may read all of it


def test_the_first_steps_loss_is_the_papers_equation(corpus: Path, tmp_path: Path, micro: Make) -> None:
    """Recompute a step the slow way: one frame after another, masked and visible."""
    off = NO_DROPOUT | {"layerdrop": 0.0}
    config = micro(encoder=off, predictor={"dropout": 0.0}, augment={"p_noise": 0.0, "p_mix": 0.0})
    run, batch = one_batch(config, corpus)
    clean = batch.waveforms.float() / 32768
    q = run.targets(run.targets.frame_features(clean, None))[0]
    model = run.model.eval()
    mask = batch.masks[:, 0]
    z = model.encoder(clean, mask=mask).last
    predicted = model.predictor(z, mask)
    total, count = 0.0, 0
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            p = torch.softmax(model.head(predicted[b, t] if mask[b, t] else z[b, t]), -1).detach()
            total += float((q[b, t] * (q[b, t].clamp(min=1e-38).log() - p.log())).sum())
            count += 1
    train_step(run, config.schedule()[0], batch, None)
    assert run.meter.read()["loss"] == pytest.approx(total / count, rel=1e-4)


def test_several_masks_of_an_utterance_equal_a_batch_that_repeats_it(corpus: Path, micro: Make) -> None:
    off = NO_DROPOUT | {"layerdrop": 0.0}
    quiet = {"encoder": off, "predictor": {"dropout": 0.0}, "augment": {"p_noise": 0.0, "p_mix": 0.0}}
    config = micro(mask={"views": 3}, train={"masked_path": "both"}, **quiet)
    run, batch = one_batch(config, corpus)
    utterances, views, frames = batch.masks.shape
    assert views == 3
    assert not torch.equal(batch.masks[:, 0], batch.masks[:, 1])
    repeated = replace(
        batch,
        waveforms=batch.waveforms.repeat_interleave(3, 0),
        masks=batch.masks.view(utterances * 3, 1, frames),
        draws=batch.draws.repeat_interleave(3, 1),
    )
    train_step(run, config.schedule()[0], batch, None)
    again, _ = one_batch(config, corpus)
    train_step(again, config.schedule()[0], repeated, None)
    found, expected = run.meter.read(), again.meter.read()
    for name in ("loss", "gradient_norm", "kl_masked", "kl_visible", "kl_encoder", "accuracy_masked", "target_entropy"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


def test_a_batch_that_drew_no_mask_is_not_a_bad_step(corpus: Path, micro: Make) -> None:
    config = micro(phase1={"visible_loss_until": 0}, train={"masked_path": "both"})
    run, batch = one_batch(config, corpus)
    batch.masks.zero_()
    train_step(run, config.schedule()[0], batch, None)
    found = run.meter.read()
    assert (found["loss"], found["gradient_norm"], found["skipped_steps"]) == (0.0, 0.0, 0)


def one_batch(config: Config, corpus: Path, phase: int = 1) -> tuple[Run, Batch]:
    """A run with the fitted targets of a phase, and its first batch."""
    from sjepa.data.opening import open_corpus

    loaded = open_corpus(corpus, config.batches.max_seconds, "memory", 1.0, show=False)
    plan = BatchPlan(loaded.length, seconds=config.batches.seconds, buckets=config.batches.buckets, seed=0)
    reader = BatchReader(loaded, config.mask, config.augment, seed=0, accumulate=config.train.accumulate)
    batch = reader[plan.epoch(0)[0]]
    run = Run.start(config, torch.device("cpu"))
    targets = run.make_targets(config.schedule()[phase - 1])
    targets.fit(targets.frames_to_fit(batch.waveforms.float() / 32768, run.layer.active).flatten(0, 1))
    run.install(targets, phase)
    return run, batch


def test_recomputed_layers_give_the_same_gradients_with_dropout(corpus: Path, micro: Make) -> None:
    moments = []
    for recompute in (False, True):
        config = micro(train={"recompute": recompute})
        run, batch = one_batch(config, corpus)
        train_step(run, config.schedule()[0], batch, None)
        moments.append({n: run.optimizers[0].state[p]["exp_avg"] for n, p in run.model.named_parameters()})
    for name, value in moments[0].items():
        torch.testing.assert_close(moments[1][name], value, rtol=1e-5, atol=1e-10, msg=name)


def test_audio_at_a_changed_speed_trains_like_audio_recorded_at_that_speed(corpus: Path, micro: Make) -> None:
    def learn_once(speed: dict[str, Any], audio: Callable[[Batch], torch.Tensor]) -> dict[str, Any]:
        config = micro(encoder=NO_DROPOUT, predictor={"dropout": 0.0}, augment={"p_noise": 0.0, "p_mix": 0.0} | speed)
        run, _ = one_batch(config, corpus)
        learn(run, find_step_kind(run, config.schedule()[0]), audio(batch), batch.masks, batch.draws, None)
        return run.meter.read()

    speed = {"speed": 0.1, "speed_targets": True}
    _, batch = one_batch(micro(augment=speed), corpus)
    rate = Draws.from_rows(batch.draws).rate
    samples = student_samples(batch.clean.shape[1], 0.1)
    found = learn_once(speed, lambda batch: batch.clean)
    assert found == learn_once({}, lambda batch: change_speed(batch.clean, rate, samples))
    assert found["loss"] != learn_once(speed | {"speed_targets": False}, lambda batch: batch.clean)["loss"]


def test_checkpoints_can_follow_the_clock(corpus: Path, tmp_path: Path, micro: Make) -> None:
    """Every line is later than a billionth of a minute after the last checkpoint."""
    train = {"checkpoint_every": 1000, "checkpoint_minutes": 1e-9, "keep_checkpoints": 99, "log_every": 2}
    assert pretrain(micro(train=train), corpus, tmp_path / "run", show=False)
    assert RunFolder(tmp_path / "run").checkpoint_steps == [12, 10, 8, 6, 4, 2]


def test_a_few_seconds_are_learned_down_to_the_targets_entropy(corpus: Path, micro: Make) -> None:
    off = NO_DROPOUT | {"layerdrop": 0.0}
    wide = {"hidden_size": 96, "inner_size": 192, "conv_channels": 48, "feature_gradient_scale": 1.0}
    config = micro(
        encoder=off | wide,
        predictor={"dropout": 0.0},
        augment={"p_noise": 0.0, "p_mix": 0.0},
        phase1={"steps": 400, "lr": 2e-3, "warmup": 20},
    )
    run, batch = one_batch(config, corpus)
    seen = []
    for step in range(400):
        run.step = step
        train_step(run, config.schedule()[0], batch, None)
        if step % 20 == 0:  # the mean of 20 steps, of the first one at the beginning
            seen.append(run.meter.read())
            if seen[-1]["loss"] < 0.1:
                break
    assert seen[0]["loss"] > 1.2
    # KL is cross-entropy less the targets' entropy: its floor is 0.
    assert seen[-1]["loss"] < 0.1
    assert seen[-1]["accuracy_masked"] > 0.95


def test_a_run_killed_at_any_step_and_continued_equals_an_uninterrupted_one(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = micro(train={"checkpoint_every": 2, "optimizer": "muon"}, phase1={"steps": 9}, phase2={"steps": 30})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert pretrain(config, corpus, whole, show=False)
    kill_and_finish(arguments(config, corpus, killed, tmp_path), killed, kills=(3, 11, 13))
    assert lines(killed) == lines(whole)
    for part in ("encoder", "encoder-phase1"):
        weights = [(run / part / "model.safetensors").read_bytes() for run in (whole, killed)]
        assert weights[0] == weights[1]
    assert (whole / "gmm-phase2.safetensors").read_bytes() == (killed / "gmm-phase2.safetensors").read_bytes()


def kill_and_finish(call: list[str], run: Path, kills: tuple[int, ...], world_size: int = 1) -> None:
    """Start, SIGKILL once the log has so many training lines, and again; then let it finish."""
    log, output = run / "metrics.jsonl", run.with_name("output.txt")
    for after in kills:
        ranks = start_ranks(call, output, world_size)
        deadline = time.monotonic() + 120
        while ranks[0].is_running and time.monotonic() < deadline:
            if log.exists() and log.read_text().count('"event": "train"') >= after:
                break
            time.sleep(0.005)
        for rank in ranks:
            rank.kill()
    ranks = start_ranks(call, output, world_size)
    assert [rank.wait() for rank in ranks] == [0] * world_size, ranks[0].text
    assert "Continuing" in ranks[0].text


def test_two_ranks_killed_and_continued_equal_two_ranks_never_stopped(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = micro(train={"checkpoint_every": 2}, phase2={"steps": 30})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ranks = start_ranks(arguments(config, corpus, whole, tmp_path), tmp_path / "whole.txt", 2)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].text
    kill_and_finish(arguments(config, corpus, killed, tmp_path), killed, kills=(8,), world_size=2)
    assert lines(killed) == lines(whole)
    assert (whole / "encoder" / "model.safetensors").read_bytes() == (
        killed / "encoder" / "model.safetensors"
    ).read_bytes()


def test_two_ranks_with_half_the_batch_equal_one_with_the_whole(corpus: Path, tmp_path: Path, micro: Make) -> None:
    off = NO_DROPOUT | {"layerdrop": 0.3}
    config = micro(
        encoder=off,
        predictor={"dropout": 0.0},
        augment={"p_noise": 0.0, "p_mix": 0.0},
        gmm={"reservoir": 10_000},
        layer={"choice": 1},
        phase1={"lr": 1e-4},
        phase2={"lr": 1e-4},
        batches={"seconds": 4.8},  # four utterances in either bucket: the same global batches for one rank and for two
        train={"checkpoint_every": 1, "keep_checkpoints": 99, "masked_path": "both", "optimizer": "muon"},
    )
    runs = {}
    for size in (1, 2):
        runs[size] = tmp_path / f"size{size}"
        call = arguments(config, corpus, runs[size], tmp_path)
        ranks = start_ranks(call, tmp_path / f"output{size}.txt", size)
        assert [rank.wait() for rank in ranks] == [0] * size, ranks[0].text
    gradients = [part(runs[size], 1, "optimizer", "") for size in (1, 2)]
    assert {name.split("/")[1] for name in gradients[0]} == {"exp_avg", "exp_avg_sq", "step", "momentum"}
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][name], gradient, rtol=1e-3, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )
    keys = ("loss", "kl_masked", "kl_visible", "kl_encoder", "target_entropy", "gradient_norm", "target_perplexity")
    for key in keys:
        values = [[line[key] for line in lines(runs[size], "train")] for size in (1, 2)]
        assert values[1] == pytest.approx(values[0], rel=2e-3)
    log = [json.loads(line) for line in RunFolder(runs[2]).log.read_text().splitlines()]
    for line in (line for line in log if line["event"] == "train"):
        assert {name: len(values) for name, values in line["rank_speed"].items()} == {"waiting": 2, "product_ms": 2}
    mixtures = [part(runs[size], 12, "targets", "codebook") for size in (1, 2)]
    for name, tensor in mixtures[0].items():
        torch.testing.assert_close(mixtures[1][name], tensor, rtol=1e-2, atol=2e-3)


def part(run: Path, step: int, name: str, containing: str) -> dict[str, torch.Tensor]:
    tensors = safetensors.torch.load_file(RunFolder(run).checkpoint(step) / f"{name}.safetensors")
    return {key: value for key, value in tensors.items() if containing in key}


@pytest.mark.parametrize(("on_change", "moves"), [("carry", False), ("anchor", True)])
def test_the_mixture_moves_to_another_layer_if_requested(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch, on_change: str, moves: bool
) -> None:
    ranks = itertools.cycle([[2.0, 1.0], [1.0, 9.0]])
    monkeypatch.setattr(loop, "measure_effective_ranks", lambda *_: next(ranks))
    seen: list[tuple[int, int]] = []
    anchor = Targets.anchor
    monkeypatch.setattr(
        Targets, "anchor", lambda self, frames: seen.append(tuple(frames.shape)) or anchor(self, frames)
    )
    config = micro(layer={"on_change": on_change, "smoothing": 0.0}, phase2={"layer_check_every": 2})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    layers = [line["active_layer"] for line in lines(tmp_path / "run", "layers") if line["phase"] == 2]
    assert len(set(layers)) == 2
    assert (len(seen) > 0) == moves
    assert all(shape[1] == 2 * config.encoder.hidden_size for shape in seen)


@pytest.mark.parametrize("reseed", [False, True])
def test_dead_components_restart_if_requested(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch, reseed: bool
) -> None:
    monkeypatch.setattr(metrics, "DEAD_SHARE", 0.9)  # so that some are always dead
    assert pretrain(micro(gmm={"reseed": reseed}), corpus, tmp_path / "run", show=False)
    for line in lines(tmp_path / "run", "train"):
        asked = reseed and line["phase"] == 2 and line["dead_components"]
        assert line.get("reseeded") == (line["dead_components"] if asked else None)
    assert any(line["dead_components"] for line in lines(tmp_path / "run", "train") if line["phase"] == 2)


def test_an_alarm_is_logged_with_every_line_and_printed_once_while_it_lasts(
    corpus: Path, tmp_path: Path, micro: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    uniform = {"temperature": 1000.0}
    assert pretrain(micro(phase1=uniform, phase2=uniform), corpus, tmp_path / "run", show=False)
    logged = [line["alarms"] for line in lines(tmp_path / "run", "train")]
    assert sum(any(alarm["code"] == "targets-uniform" for alarm in found) for found in logged) == len(logged) > 2
    assert capsys.readouterr().out.count("uniform") == 1


def test_a_run_is_trained_by_one_process_at_a_time(corpus: Path, tmp_path: Path, micro: Make) -> None:
    run = tmp_path / "run"
    assert pretrain(micro(), corpus, run, show=False)
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    before = (run / "metrics.jsonl").read_bytes()
    with RunFolder(run).lock(), pytest.raises(UserError, match="another process is training"):
        pretrain(micro(), corpus, run, show=False)
    assert (run / "metrics.jsonl").read_bytes() == before
    assert pretrain(micro(), corpus, run, show=False)


def test_ctrl_c_saves_and_the_same_command_continues(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = micro(train={"checkpoint_every": 1000}, phase1={"steps": 100})
    run = tmp_path / "run"
    process = Command(arguments(config, corpus, run, tmp_path), tmp_path / "output.txt")
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_text().count("\n") < 5:
        time.sleep(0.01)
    process.send(signal.SIGINT)
    assert process.wait() == 130
    assert "the same command continues" in process.text
    stopped = RunFolder(run).checkpoint_steps[0]
    assert 0 < stopped < 100
    assert lines(run, "train")[-1]["step"] == stopped
    assert lines(run, "stopped") == [{"event": "stopped", "step": stopped}]
    saved = safetensors.torch.load_file(RunFolder(run).checkpoint(stopped) / "model.safetensors")
    usable = Encoder.from_pretrained(run).state_dict()
    assert all(torch.equal(weights, saved[f"encoder.{name}"]) for name, weights in usable.items())
    assert not (run / "encoder-phase1").exists()
    assert pretrain(config, corpus, run, show=False)
    assert lines(run, "train")[-1]["step"] == config.steps
    assert not lines(run, "stopped")


@pytest.mark.parametrize(
    "settings",
    [{"targets": "same", "temperature": 9.0}, {"targets": "encoder-kmeans"}, {"hard": True}, {"temperature": 4.0}],
)
def test_a_comparison_is_a_line_of_config(corpus: Path, tmp_path: Path, micro: Make, settings: dict[str, Any]) -> None:
    run = tmp_path / "run"
    assert pretrain(micro(phase2=settings), corpus, run, show=False)
    last = lines(run, "train")[-1]
    assert last["phase"] == 2
    if settings.get("hard") or settings.get("targets") == "encoder-kmeans":
        assert last["target_entropy"] == 0.0
    if settings.get("targets") == "encoder-kmeans":  # fitted on one layer, it stays there whatever the ranks say
        checks = [check for check in lines(run, "layers") if check["step"] >= 6]
        assert len({tuple(check["smoothed"]) for check in checks}) == 1
        # The target encoder does not move, and ranks are measured on the same utterances: they do not move either.
        assert len({tuple(check["effective_ranks"]) for check in checks}) == 1
    if settings.get("targets") == "same":
        assert [p["k"] for p in lines(run, "phase")] == [8, 8]
        entropy = [line["target_entropy"] for line in lines(run, "train")]
        assert max(entropy[6:]) < 2 * max(entropy[:6])  # phase 1's temperature holds
        first, second = (DiagonalGMM.load(run / f"gmm-phase{n}.safetensors") for n in (1, 2))
        assert torch.equal(first.means, second.means)


def test_best_rq_trains_through_both_phases(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = micro(phase1={"targets": "best-rq"}, phase2={"targets": "same"})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    assert lines(tmp_path / "run", "train")[-1]["target_entropy"] == 0.0


def test_steps_without_a_finite_gradient_are_skipped_counted_and_end_the_run(
    corpus: Path, tmp_path: Path, micro: Make
) -> None:
    config = micro(train={"bad_steps": 3})
    run, batch = one_batch(config, corpus)
    for step in range(2):  # moments exist before the bad step
        run.step = step
        train_step(run, config.schedule()[0], batch, None)
    before = {name: p.clone() for name, p in run.model.named_parameters()}
    steps = [state["step"].clone() for state in run.optimizers[0].state.values()]
    with torch.no_grad():
        run.model.predictor.mask_token[0] = float("inf")
    for step in range(2, 5):
        run.step = step
        train_step(run, config.schedule()[0], batch, None)
    for name, p in run.model.named_parameters():
        if name != "predictor.mask_token":
            assert torch.equal(p, before[name])
    assert [state["step"].item() for state in run.optimizers[0].state.values()] == [s.item() for s in steps]
    values = run.meter.read()
    assert values["skipped_steps"] == 3
    assert values["bad_in_row"] == 3
    with pytest.raises(UserError, match="not finite at step 2: lower the learning rate"):
        pretrain(change(config, phase1={"lr": 1e38, "warmup": 0}), corpus, tmp_path / "run", show=False)


def test_too_many_bad_steps_in_a_row_end_the_run(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sjepa.train.step.to_float", lambda waveforms: waveforms.float() * float("inf"))
    config = micro(train={"bad_steps": 3, "checkpoint_every": 2})
    with pytest.raises(UserError, match="3 consecutive steps up to step 3 had no finite gradient"):
        pretrain(change(config, phase1={"layer_check_every": 100}), corpus, tmp_path / "run", show=False)
    assert RunFolder(tmp_path / "run").checkpoint_steps == [2]


def test_noise_recordings_are_used(corpus: Path, tmp_path: Path, micro: Make) -> None:
    import soundfile

    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise" / "a.wav", babble(4.0, 99), 16_000)
    config = micro(augment={"noise": str(tmp_path / "noise"), "p_noise": 1.0})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    among_themselves = micro(augment={"p_noise": 1.0})
    assert pretrain(among_themselves, corpus, tmp_path / "batch", show=False)
    assert lines(tmp_path / "run", "train")[0]["loss"] != lines(tmp_path / "batch", "train")[0]["loss"]


def test_noise_that_is_shorter_than_a_batch_is_repeated(tmp_path: Path, micro: Make) -> None:
    import soundfile

    samples = babble(0.3, 99)
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="PCM_16")
    config = micro(augment={"noise": str(tmp_path)}, phase2={"buckets": (1.9,)}, batches={"max_seconds": 2.0})
    noise = load_noise(config, torch.device("cpu"), False)
    assert noise is not None
    assert len(noise) >= 1.9 * 16_000  # the longest bucket of any phase
    assert torch.equal(noise[: len(samples)], noise[len(samples) : 2 * len(samples)])
