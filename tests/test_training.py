"""Whole runs at a tiny size: the order of phases, the settings that change them, and two ranks against one."""

import itertools
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from conftest import NO_DROPOUT, babble, change
from processes import start_ranks
from small_runs import Make, arguments, lines

from sjepa import DiagonalGMM, Encoder, UserError
from sjepa.data.loader import Batch, BatchReader, plan_batches
from sjepa.data.opening import open_corpus
from sjepa.runs.folder import RunFolder
from sjepa.runs.steps import load_encoder_at
from sjepa.stopping import StoppedError
from sjepa.targets.targets import Targets
from sjepa.train import loop, metrics, reporting
from sjepa.train.loop import load_noise, pretrain


def test_the_phases_run_in_the_order_of_the_config(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = micro(
        phase1={"layer_check_every": 4, "warmup": 4},
        phase2={"layer_check_every": 3, "ema_switch_every": 2, "steps": 8},
    )
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    train = lines(tmp_path / "run", "train")
    assert [line["step"] for line in train] == list(range(1, 15))
    first, second = train[:6], train[6:]
    assert all(line["phase"] == 1 and line["visible_loss"] and line["augmented"] for line in first)
    assert all(line["decay"] is None and line["active_layer"] is None for line in first)
    assert [line["lr"] for line in train] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, *[1e-3] * 11])
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


def test_a_phase_with_other_batches_begins_with_the_next_epoch(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = {"steps": 3, "targets": "same", "batch_seconds": 1.3, "buckets": (0.6,)}
    config = micro(phase1={"steps": 2}, phase2=second)
    seen: list[Batch] = []
    train_step = loop.train_step

    def recorded(run: Any, phase: Any, batch: Batch, noise: Any) -> None:
        seen.append(batch)
        train_step(run, phase, batch, noise)

    monkeypatch.setattr(loop, "train_step", recorded)
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    opened = open_corpus(corpus, config.batches.max_seconds, "memory", 1.0)
    reader = BatchReader(opened, config.mask, config.augment, seed=config.seed)
    plans = [plan_batches(opened, config.batches_in(phase), config.seed) for phase in config.phases]
    assert min(len(plan.epoch(0)) for plan in plans) > 2  # phase 1 ends within an epoch of both
    specs = [*itertools.islice(plans[0].batches(0, 0), 2), *itertools.islice(plans[1].batches(1, 0), 3)]
    for batch, spec in zip(seen, specs, strict=True):
        assert torch.equal(batch.waveforms, reader[spec].waveforms)


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


def test_checkpoints_can_follow_the_clock(corpus: Path, tmp_path: Path, micro: Make) -> None:
    """Every line is later than a billionth of a minute after the last checkpoint."""
    train = {"checkpoint_every": 1000, "checkpoint_minutes": 1e-9, "keep_checkpoints": 99, "log_every": 2}
    assert pretrain(micro(train=train), corpus, tmp_path / "run", show=False)
    assert RunFolder(tmp_path / "run").checkpoint_steps == [12, 10, 8, 6, 4, 2]


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
    logs = [[line for line in RunFolder(runs[size]).events() if line["event"] == "train"] for size in (1, 2)]
    audio = [[line["speed"]["audio_per_second"] * line["speed"]["seconds"] for line in log] for log in logs]
    assert audio[1] == pytest.approx(audio[0])
    assert all(seconds == pytest.approx(4.0) or seconds == pytest.approx(4.8) for seconds in audio[0])
    for line in logs[1]:
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
    moved: list[tuple[int, int]] = []
    anchor, layer_features = Targets.anchor, Targets.layer_features
    monkeypatch.setattr(
        Targets, "anchor", lambda self, frames: seen.append(tuple(frames.shape)) or anchor(self, frames)
    )
    monkeypatch.setattr(
        Targets,
        "layer_features",
        lambda self, clean, layers: moved.append(layers) or layer_features(self, clean, layers),
    )
    config = micro(layer={"on_change": on_change, "smoothing": 0.0}, phase2={"layer_check_every": 2})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    checks = lines(tmp_path / "run", "layers")
    layers = [check["active_layer"] for check in checks if check["phase"] == 2]
    assert len(set(layers)) == 2
    before = [check["active_layer"] for check in checks if check["phase"] == 1][-1]
    changes = [(old, new) for old, new in itertools.pairwise([before, *layers]) if old != new]
    # No step follows the last check, so its choice has no effect until the run is lengthened.
    assert layers[-1] != layers[-2]
    assert Encoder.from_pretrained(tmp_path / "run").clusters.info.layer == layers[-2]
    assert lines(tmp_path / "run", "train")[-1]["active_layer"] == layers[-2]
    assert len(seen) == (len(changes) - 1 if moves else 0)
    assert pretrain(change(config, phase2={"steps": 7}), corpus, tmp_path / "run", show=False)
    assert Encoder.from_pretrained(tmp_path / "run").clusters.info.layer == layers[-1]
    assert [pair for pair, _ in itertools.groupby(moved)] == (changes if moves else [])
    assert len(seen) == (len(changes) if moves else 0)
    assert all(shape[1] == 2 * config.encoder.hidden_size for shape in seen)


def test_online_targets_are_fitted_again_at_a_cadence(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor, likelihoods = Targets.anchor, []

    def measure(self: Targets, frames: torch.Tensor) -> None:
        for refit in (lambda: None, lambda: anchor(self, frames)):
            refit()
            found = self.codebook.expect(self.projection(frames))
            likelihoods.append(float(found.log_likelihood / found.frames))

    monkeypatch.setattr(Targets, "anchor", measure)
    config = micro(phase2={"steps": 7, "refit_every": 3, "dimensions": 4}, layer={"choice": 0})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    before, after = likelihoods[::2], likelihoods[1::2]
    assert len(before) == 2  # before steps 3 and 6 of phase 2, not before its first
    assert all(a < b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("reason", [UserError, StoppedError])
def test_a_run_that_ends_while_it_refits_saves_its_steps_and_refits_again(
    reason: type[BaseException], corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"steps": 7, "refit_every": 4, "layer_check_every": 4}
    config = micro(phase2=settings, layer={"on_change": "anchor", "smoothing": 0.0})
    ranks = itertools.cycle([[2.0, 1.0]] * 3 + [[1.0, 9.0]] * 2)  # the layer changes at the refit too
    monkeypatch.setattr(loop, "measure_effective_ranks", lambda *_: next(ranks))
    assert pretrain(config, corpus, tmp_path / "whole", show=False)

    def end(*_: Any, **__: Any) -> None:
        raise reason

    with monkeypatch.context() as patched, pytest.raises(UserError) if reason is UserError else nullcontext():
        patched.setattr(Targets, "layer_features", end)
        assert not pretrain(config, corpus, tmp_path / "run", show=False)
    assert RunFolder(tmp_path / "run").step == 10  # checkpoints are due at steps 9 and 12
    assert load_encoder_at(tmp_path / "run", 10).clusters.info.layer == 0
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    assert Encoder.from_pretrained(tmp_path / "run").clusters.info.layer == 1


def test_a_stop_ends_the_sampling_of_a_refit(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_features, sampled = Targets.layer_features, []

    def interrupt(self: Targets, clean: torch.Tensor, layers: tuple[int, ...]) -> torch.Tensor:
        sampled.append(layers)
        signal.raise_signal(signal.SIGTERM)
        return layer_features(self, clean, layers)

    monkeypatch.setattr(Targets, "layer_features", interrupt)
    config = micro(phase2={"refit_every": 4}, layer={"choice": 0})
    assert not pretrain(config, corpus, tmp_path / "run", show=False)
    assert sampled == [(0,)]
    assert RunFolder(tmp_path / "run").step == 10


def test_a_phase_with_the_same_targets_reads_the_layer_that_its_first_line_names(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = itertools.chain([[2.0, 1.0]] * 5, itertools.repeat([1.0, 90.0]))  # changes with the last check of phase 2
    monkeypatch.setattr(loop, "measure_effective_ranks", lambda *_: next(ranks))
    config = micro(phase3={"targets": "same", "steps": 2})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    assert [line["active_layer"] for line in lines(tmp_path / "run", "phase")] == [None, 0, 1]
    assert [line["active_layer"] for line in lines(tmp_path / "run", "train")] == [None] * 6 + [0] * 6 + [1] * 2


@pytest.mark.parametrize("option", ["speed", "equalizer"])
def test_an_augmentation_that_no_phase_would_use_is_refused_in_a_new_run(
    option: str, corpus: Path, tmp_path: Path, micro: Make
) -> None:
    unused = {"augment_until": 0}
    config = micro(augment={option: 0.1}, phase1=unused, phase2=unused)
    words = rf"augment\.{option}: no phase augments .* raise phase1\.augment_until and phase2\.augment_until"
    with pytest.raises(UserError, match=words):
        pretrain(config, corpus, tmp_path / "run", show=False)
    assert pretrain(change(config, phase1={"augment_until": 3}), corpus, tmp_path / "run", show=False)


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


def test_a_continued_run_knows_the_best_accuracy_before(
    corpus: Path, tmp_path: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a fall just before a kill would raise no alarm after it."""
    best: list[float] = []
    monkeypatch.setattr(reporting, "find_alarms", lambda *rest: best.append(rest[-1]) or [])
    config, run = micro(layer={"choice": 1}), tmp_path / "run"
    assert pretrain(config, corpus, run, show=False)
    whole, best[:] = best[:], []
    assert len(whole) == 12
    assert whole[0] == whole[6] == 0.0  # the first lines of the phases
    assert min(whole[9:]) > 0.0
    shutil.rmtree(RunFolder(run).checkpoint(12))
    assert pretrain(config, corpus, run, show=False)
    assert best == whole[9:]


def test_a_run_is_trained_by_one_process_at_a_time(corpus: Path, tmp_path: Path, micro: Make) -> None:
    run = tmp_path / "run"
    assert pretrain(micro(), corpus, run, show=False)
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    before = (run / "metrics.jsonl").read_bytes()
    with RunFolder(run).lock(), pytest.raises(UserError, match="another process is training"):
        pretrain(micro(), corpus, run, show=False)
    assert (run / "metrics.jsonl").read_bytes() == before
    assert pretrain(micro(), corpus, run, show=False)


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
        assert len({check["active_layer"] for check in checks}) == 1
        # Ranks are those of the encoder in training, for the layer of a next phase.
        assert len({tuple(check["effective_ranks"]) for check in checks}) == len(checks) > 1
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
    noise = load_noise(config, torch.device("cpu"))
    assert noise is not None
    assert len(noise) >= 1.9 * 16_000  # the longest bucket of any phase
    assert torch.equal(noise[: len(samples)], noise[len(samples) : 2 * len(samples)])
