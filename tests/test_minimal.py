"""`examples/minimal.py`, the method in one file, against the package."""

import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import NO_DROPOUT, babble, change
from torch import Tensor

from sjepa.audio.mfcc import MfccConfig
from sjepa.audio.mfcc import mfcc as package_mfcc
from sjepa.config import Config
from sjepa.data.masking import MaskConfig
from sjepa.data.masking import block_mask as package_mask
from sjepa.targets.fit import GmmConfig, fit_mixture, initial_mixture, variance_floor
from sjepa.targets.gmm import DiagonalGMM
from sjepa.train import loop, step
from sjepa.train.metrics import Meter

FILE = Path(__file__).parent.parent / "examples/minimal.py"


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def to_minimal(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The package's weights under the names of `minimal.SJEPA`, without the head's output layer."""
    renamed = {"predictor.mask_token": "mask_token", "predictor.positions": "positions"}
    for name, place in {"weight": "1.weight", "bias": "1.bias"}.items():
        renamed[f"predictor.projection.{name}"] = f"predictor.{place}"
        renamed[f"encoder.feature_projection.layer_norm.{name}"] = f"encoder.projection.0.{name}"
        renamed[f"encoder.feature_projection.projection.{name}"] = f"encoder.projection.{place}"
        renamed[f"encoder.encoder.layer_norm.{name}"] = f"encoder.norm.0.{name}"
        renamed[f"encoder.feature_extractor.conv_layers.0.layer_norm.{name}"] = f"encoder.frontend.1.{name}"
        renamed |= {f"head.layers.{i}.{name}": f"head.{i}.{name}" for i in (0, 2)}
    for i in range(7):
        renamed[f"encoder.feature_extractor.conv_layers.{i}.conv.weight"] = f"encoder.frontend.{2 * i + (i > 0)}.weight"
    found = {renamed[name]: value for name, value in weights.items() if name in renamed}
    conv = "encoder.encoder.pos_conv_embed.conv."
    found |= {f"encoder.position.{n.removeprefix(conv)}": w for n, w in weights.items() if n.startswith(conv)}
    layers = {n.split(".attention.")[0] for n in weights if ".attention." in n}
    for theirs in layers:
        ours = "predictor.0" if theirs == "predictor.layer" else theirs.replace("encoder.encoder.", "encoder.")
        parts = {"attention.out_proj": "self_attn.out_proj", "layer_norm": "norm1", "final_layer_norm": "norm2"}
        parts |= {"feed_forward.intermediate_dense": "linear1", "feed_forward.output_dense": "linear2"}
        for name in ("weight", "bias"):
            found |= {f"{ours}.{b}.{name}": weights[f"{theirs}.{a}.{name}"] for a, b in parts.items()}
            qkv = [weights[f"{theirs}.attention.{x}_proj.{name}"] for x in "qkv"]
            found[f"{ours}.self_attn.in_proj_{name}"] = torch.cat(qkv)
    return {name: value.detach().clone() for name, value in found.items()}


def run_package(config: Config, corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Train, and record the first weights, each phase's mixture and output layer, and each step's batch and loss."""
    record = SimpleNamespace(weights={}, mixtures=[], outputs=[], batches=[], losses=[])
    begin, learn, add = loop.begin_phase, step.learn, Meter.add

    def begin_phase(run: Any, *rest: Any) -> None:
        begin(run, *rest)
        record.weights = record.weights or to_minimal(run.model.state_dict())
        record.mixtures.append({name: value.clone() for name, value in run.targets.codebook.state_dict().items()})
        record.outputs.append({name: value.clone() for name, value in run.model.head.output.state_dict().items()})

    def learn_and_record(run: Any, kind: Any, clean: Tensor, mask: Tensor, *rest: Any) -> None:
        record.batches.append((clean.clone(), mask[:, 0].clone()))  # one view per utterance
        learn(run, kind, clean, mask, *rest)

    def add_and_record(meter: Meter, sums: Any, occupancy: Any, loss: Tensor, *rest: Any) -> None:
        record.losses.append(float(loss))
        add(meter, sums, occupancy, loss, *rest)

    monkeypatch.setattr(loop, "begin_phase", begin_phase)
    monkeypatch.setattr(step, "learn", learn_and_record)
    monkeypatch.setattr(Meter, "add", add_and_record)
    assert loop.pretrain(config, corpus, out, show=False)
    return record


def test_both_phases_have_the_packages_losses(
    minimal: ModuleType, micro: Callable[..., Config], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = {"encoder": NO_DROPOUT | {"layerdrop": 0.0, "layers": 3}, "predictor": {"dropout": 0.0}}
    config = micro(**network, layer={"frames": 10**6}, gmm={"decay": 0.9}, ema={"fast": 0.9, "slow": 0.97})
    first = {"steps": 9, "lr": 1e-3, "warmup": 4, "layer_check_every": 4, "augment_until": 0}
    second = {"steps": 12, "lr": 5e-4, "warmup": 0, "layer_check_every": 4, "ema_switch_every": 5, "augment_until": 0}
    config = change(config, phase1=first, phase2=second | {"visible_loss_until": 0.5})
    package = run_package(config, corpus, tmp_path / "run", monkeypatch)

    e, settings = config.encoder, vars(minimal.PAPER).copy()
    settings |= {"dim": e.hidden_size, "layers": e.layers, "heads": e.heads, "inner": e.inner_size, "dropout": 0.0}
    settings |= {"channels": e.conv_channels, "kernel": e.position_kernel, "groups": e.position_groups}
    settings |= {
        "layerdrop": 0.0,
        "predictor_heads": config.predictor.heads,
        "seconds": config.predictor.positions / 50,
    }
    settings |= {"predictor_inner": config.predictor.inner_size, "fit_batches": 1, "gmm_decay": config.gmm.decay}
    settings |= {"steps": (9, 12), "k": (8, 12), "lr": (1e-3, 5e-4), "warmup": 4, "layer_check": 4, "ema_switch": 5}
    s = SimpleNamespace(**settings | {"ema_fast": 0.9, "ema_slow": 0.97})

    model = minimal.SJEPA(s)
    model.load_state_dict(package.weights)
    mixtures, outputs = iter(package.mixtures), iter(package.outputs)

    def take_mixture(self: Any, x: Tensor, k: int) -> None:
        fitted = next(mixtures)
        assert (k, x.shape[1]) == fitted["means"].shape
        self.weights, self.means, self.variances, self.floor = (
            fitted[name] for name in ("weights", "means", "variances", "floor")
        )

    class Output(torch.nn.Linear):
        def __init__(self, size: int, components: int):
            super().__init__(size, components)
            self.load_state_dict(next(outputs))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for steps, of_phase in ((9, package.batches[:9]), (12, package.batches[9:])):
            assert len(of_phase) == steps
            yield package.batches[0]  # for the fit
            yield from of_phase

    monkeypatch.setattr(minimal.Mixture, "__init__", take_mixture)
    monkeypatch.setattr(minimal.nn, "Linear", Output)
    found = list(minimal.pretrain(model, batches(), s))
    assert [phase for phase, _ in found] == [1] * 9 + [2] * 12
    assert [loss for _, loss in found] == pytest.approx(package.losses, rel=2e-4)


def test_its_mfccs_are_the_packages(minimal: ModuleType) -> None:
    audio = torch.from_numpy(np.stack([babble(1.3, seed) for seed in range(2)]))
    torch.testing.assert_close(minimal.mfcc(audio), package_mfcc(audio, MfccConfig()), atol=2e-3, rtol=1e-4)


def test_its_masks_are_the_packages(minimal: ModuleType) -> None:
    for seed, frames in enumerate((49, 120, 749)):
        ours = minimal.block_mask(frames, 0.65, 10, np.random.default_rng(seed))
        assert (ours == package_mask(frames, MaskConfig(), np.random.default_rng(seed))).all()


def test_an_update_without_decay_is_the_packages_em(minimal: ModuleType) -> None:
    frames, settings = torch.randn(600, 5) * torch.arange(1.0, 6.0) + 3.0, GmmConfig()
    package = initial_mixture(frames, frames[:7], variance_floor(frames, settings))
    mixture = object.__new__(minimal.Mixture)
    for name in ("weights", "means", "variances", "floor"):
        setattr(mixture, name, getattr(package, name).clone())
    for _ in range(3):
        torch.testing.assert_close(mixture.posterior(frames), package.posterior(frames), atol=1e-5, rtol=1e-4)
        mixture.update(frames, mixture.posterior(frames), decay=0.0)
        package.maximize(package.expect(frames))
    for name in ("weights", "means", "variances"):
        torch.testing.assert_close(getattr(mixture, name), getattr(package, name), atol=1e-4, rtol=1e-4)


def test_its_fit_is_as_likely_as_the_packages(minimal: ModuleType) -> None:
    torch.manual_seed(0)
    centres = 2 * torch.randn(8, 4)
    frames = (centres[:, None] + torch.randn(8, 200, 4)).flatten(0, 1)
    ours = minimal.Mixture(frames, 8)
    as_package = DiagonalGMM.from_parameters(ours.weights, ours.means, ours.variances, ours.floor)
    package, _ = fit_mixture(frames, 8, GmmConfig(), seed=0)
    of_ours, of_package = (float(gmm.expect(frames).log_likelihood) / len(frames) for gmm in (as_package, package))
    assert of_ours > of_package - 0.1


def test_it_has_at_most_200_lines_and_needs_nothing_of_the_package() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= 200
    assert "sjepa." not in text
    assert "import sjepa" not in text


def test_it_trains_on_a_folder(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = (
        FILE.read_text().replace('"steps": (1000, 500)', '"steps": (2, 2)').replace("fit_batches=50", "fit_batches=2")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["minimal.py", str(corpus), "--small"])
    exec(compile(short, str(FILE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("phase 1  step 0  loss ")
    assert "layers.3.linear2.weight" in torch.load("encoder.pt", weights_only=True)


def test_without_a_folder_it_prints_its_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["minimal.py"])
    with pytest.raises(SystemExit, match=r"^usage: python examples/minimal\.py FOLDER_OF_AUDIO"):
        runpy.run_path(str(FILE), run_name="__main__")
