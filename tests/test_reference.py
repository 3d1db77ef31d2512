"""A whole run, both phases, compared with a second implementation of the algorithm in `reference.py`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_DROPOUT, change
from reference import Mixture, Reference

from sjepa.config import Config
from sjepa.train import loop, step
from sjepa.train.metrics import Meter

CASES: dict[str, dict[str, object]] = {
    "paper": {},
    "frames, softened": {"gmm": {"decay": 0.9, "update": "frames"}, "phase2": {"temperature": 4.0}},
    "hard": {"phase1": {"hard": True}, "phase2": {"hard": True}},
    "offline k-means": {"phase1": {"targets": "mfcc-kmeans"}, "phase2": {"targets": "encoder-kmeans"}},
    "two offline codebooks": {
        "phase2": {"targets": "encoder-kmeans"},
        "phase3": {"targets": "encoder-gmm", "steps": 6, "lr": 2e-4},
    },
    "offline, then online": {
        "phase2": {"targets": "encoder-gmm"},
        "phase3": {"targets": "online-gmm", "steps": 6, "lr": 2e-4},
    },
    "same, masked only": {"phase1": {"visible_loss_until": 0}, "phase2": {"targets": "same", "visible_loss_until": 0}},
    "fixed layer, augmented": {"layer": {"choice": 1}, "phase1": {"augment_until": 1.0}},
    "as many components in both": {"phase1": {"k": 8}, "phase2": {"k": 8, "centred": True}},
    "both paths at masked frames": {"train": {"masked_path": "both"}},
    "few dimensions": {"phase2": {"dimensions": 6, "directions": "discriminant"}},
    "MFCCs with context": {
        "mfcc": {"context": 2},
        "phase1": {"dimensions": 6, "directions": "discriminant", "centred": True},
    },
    "three phases": {"phase3": {"steps": 6, "k": 10, "dimensions": 5, "lr": 2e-4, "final_lr": 0.0}},
    "frozen front end": {"phase2": {"frontend_until": 5}},
    # With an attention start: other gradients of keys are rounding in part, which Muon enlarges.
    "Muon": {"train": {"optimizer": "muon"}, "encoder": {"attention_start": 1.0}, "predictor": {"attention_start": 1}},
    "clipped, decayed": {"train": {"clip": 0.05, "weight_decay": 0.5}},
}


def whole(micro: Callable[..., Config]) -> Config:
    config = micro(
        encoder=NO_DROPOUT | {"layerdrop": 0.0, "layers": 3}, predictor={"dropout": 0.0}, layer={"frames": 10**6}
    )
    config = change(config, gmm={"decay": 0.9}, ema={"fast": 0.9, "slow": 0.97}, train={"checkpoint_every": 1000})
    config = change(config, batches={"seconds": 2.4})  # two utterances
    first = {"steps": 8, "lr": 5e-4, "warmup": 3, "layer_check_every": 5, "augment_until": 0}
    second = {"steps": 11, "warmup": 3, "schedule": "cosine", "layer_check_every": 4, "ema_switch_every": 4}
    return change(config, phase1=first, phase2=second | {"lr": 5e-4, "visible_loss_until": 6, "augment_until": 0})


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm().clamp(min=1e-12))


@pytest.mark.parametrize("name", CASES)
def test_a_whole_run_is_the_papers(
    name: str, micro: Callable[..., Config], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = change(whole(micro), **CASES[name])
    reference: list[Reference] = []
    ours: dict[str, Any] = {}
    seen = {"steps": 0}
    begin, learn, measure, add = loop.begin_phase, step.learn, loop.measure_effective_ranks, Meter.add

    def begin_phase(run: Any, phase: Any, *rest: Any) -> None:
        before = run.model.head.output
        begin(run, phase, *rest)
        state, output = run.targets.codebook, run.model.head.output
        assert (output is before) == (phase.config.targets == "same")
        new = output.state_dict() if reference and output is not before else None
        if not reference:
            reference.append(Reference(config, run.model.state_dict()))
            reference[0].reference_set = run.reference_set / 32768.0
        mixture = Mixture(state.weights, state.means, state.variances, state.floor)
        reference[0].begin(phase.number, mixture, new, run.targets.projection.state_dict())

    def learn_both(run: Any, kind: step.StepKind, clean: Any, mask: Any, draws: Any, noise: Any) -> None:
        layer, decay = run.layer.active, kind.decay
        student = run.augment(clean, draws, noise, False) if kind.augments else clean
        sums = run.frame_sums
        run.frame_sums = lambda q, *rest: (ours.update(q=q), sums(q, *rest))[1]
        learn(run, kind, clean, mask, draws, noise)
        run.frame_sums = sums
        ref = reference[0]
        found = ref.step(clean, student, mask[:, 0])  # one view per utterance
        for key in ("loss", "kl_masked", "kl_visible", "norm"):
            assert ours[key] == pytest.approx(found[key], rel=1e-4), key
        assert float((ours["q"] - found["q"]).abs().mean()) < 1e-5
        assert run.optimizers[0].param_groups[0]["lr"] == found["lr"]
        if found["decay"] is not None:
            assert (decay, layer) == (found["decay"], found["layer"])
            for n, p in ref.target.named_parameters():
                assert n.endswith("k_proj.bias") or relative(run.targets.target_encoder.get_parameter(n), p) < 2e-3, n
            for part in ("weights", "means", "variances"):
                assert relative(getattr(run.targets.codebook, part), getattr(ref.mixture, part)) < 1e-3, part
        for n, p in ref.weights().items():  # softmax does not see a key's bias: its gradient is rounding
            assert n.endswith("k_proj.bias") or relative(run.model.get_parameter(n), p) < 2e-3, n
        ours["expected ranks"] = found["ranks"]
        seen["steps"] += 1

    def measured(*arguments: Any) -> list[float] | None:
        ranks = measure(*arguments)
        assert ranks == pytest.approx(ours["expected ranks"], rel=1e-4)
        return ranks

    def added(meter: Meter, sums: Any, occupancy: Any, loss: Any, norm: Any, finite: Any) -> None:
        ours.update(loss=loss.item(), norm=float(norm))
        ours.update(kl_masked=float(sums[0] / sums[4]), kl_visible=float(sums[1] / sums[5]))
        add(meter, sums, occupancy, loss, norm, finite)

    monkeypatch.setattr(loop, "begin_phase", begin_phase)
    monkeypatch.setattr(step, "learn", learn_both)
    monkeypatch.setattr(loop, "measure_effective_ranks", measured)
    monkeypatch.setattr(Meter, "add", added)
    assert loop.pretrain(config, corpus, tmp_path / "run", show=False)
    assert seen["steps"] == config.steps
