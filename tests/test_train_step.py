"""One training step: its loss against the paper's equation, masks, changed speed, and gradients that are not finite."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import NO_DROPOUT, change
from small_runs import Make, one_batch

from sjepa import UserError, distributed
from sjepa.audio.augment import Draws, change_speed, student_samples
from sjepa.data.loader import Batch
from sjepa.train.loop import pretrain
from sjepa.train.loss import kl_per_frame
from sjepa.train.step import find_step_kind, learn, train_step


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


@pytest.mark.parametrize(("augment_until", "rate"), [(6, 1.2), (0, 1.0)])
def test_targets_come_from_features_at_the_times_of_the_encoders_frames(
    augment_until: int, rate: float, corpus: Path, micro: Make
) -> None:
    """If the speed changes, they are interpolated; once it no longer does, they are those of the same frames."""
    config = micro(augment={"speed": 0.2}, phase1={"augment_until": augment_until})
    run, batch = one_batch(config, corpus)
    batch.draws[Draws._fields.index("rate")] = 1.2
    features = run.targets.frame_features(batch.clean, None).numpy()
    middles = 320 * np.arange(features.shape[1]) + 200
    times = rate * middles[: batch.masks.shape[2]]
    found = np.apply_along_axis(lambda values: np.interp(times, middles, values), 1, features)
    expected = run.targets.codebook.posterior(torch.from_numpy(found).float())
    sums, seen = run.frame_sums, []
    run.frame_sums = lambda q, *rest: (seen.append(q), sums(q, *rest))[1]
    train_step(run, config.schedule()[0], batch, None)
    torch.testing.assert_close(seen[0], expected, rtol=1e-3, atol=1e-4)


def test_dropout_differs_between_steps_and_ranks_and_repeats_itself(
    corpus: Path, micro: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = micro(encoder={"layerdrop": 0.0}, augment={"p_noise": 0.0, "p_mix": 0.0}, phase1={"lr": 0.0})
    run, batch = one_batch(config, corpus)

    def numbers(step: int, rank: int) -> tuple[float, float]:
        run.step = step
        monkeypatch.setattr(distributed, "rank", lambda: rank)
        train_step(run, config.schedule()[0], batch, None)  # the learning rate is 0: the weights stay
        values = run.meter.read()
        return values["loss"], values["gradient_norm"]

    places = [(step, rank) for step in range(2) for rank in range(2)]
    found = [numbers(*place) for place in places]
    assert len(set(found)) == len(places)
    assert [numbers(*place) for place in places] == found


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
