"""What only a GPU runs: kernels, graphs, streams, bf16. Skipped where there is none; CI has none."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import change, micro_config

from sjepa.audio.mfcc import MfccConfig, mfcc
from sjepa.config import Config
from sjepa.model.encoder import Encoder
from sjepa.model.encoder_config import EncoderConfig
from sjepa.train.loop import pretrain

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(**train: object) -> Config:
    config = micro_config(train={"device": "cuda", "checkpoint_every": 100} | train)
    return change(config, encoder={"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0})


@pytest.mark.parametrize("channels", [16, 48, 192, 512])
def test_the_encoder_is_the_same_on_a_gpu_at_any_width(channels: int) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(hidden_size=32, layers=2, heads=2, inner_size=64, conv_channels=channels, position_groups=4)
    encoder, x = Encoder(config).eval(), torch.randn(2, 6000)
    expected = encoder(x).last
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), list(encoder.parameters()))
    encoder = encoder.cuda()
    found = encoder(x.cuda()).last
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    on_device = torch.autograd.grad((found * weights.cuda()).sum(), list(encoder.parameters()))
    for ours, reference in zip(on_device, gradients, strict=True):
        assert F.cosine_similarity(ours.cpu().flatten(), reference.flatten(), dim=0) > 0.9999


def test_target_features_are_computed_in_fp32() -> None:
    waveforms = torch.randn(2, 16_000) * 0.1
    with torch.autocast("cuda", torch.bfloat16):
        found = mfcc(waveforms.cuda(), MfccConfig())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), mfcc(waveforms, MfccConfig()), rtol=1e-3, atol=2e-2)


def test_captured_steps_follow_plain_ones_and_a_continued_run_follows_both(corpus: Path, tmp_path: Path) -> None:
    from test_training import lines

    precise = {"precision": "fp32"}
    plain = on_gpu(compile=False, **precise)
    assert pretrain(plain, corpus, tmp_path / "plain", show=False)
    assert pretrain(on_gpu(**precise), corpus, tmp_path / "captured", show=False)
    halves = on_gpu(**precise, checkpoint_every=4)
    halves = dataclasses.replace(halves, phase2=dataclasses.replace(halves.phase2))
    assert pretrain(halves, corpus, tmp_path / "continued", show=False)
    for later in sorted((tmp_path / "continued" / "checkpoints").iterdir())[1:]:
        for file in later.iterdir():
            file.unlink()
        later.rmdir()
    assert pretrain(halves, corpus, tmp_path / "continued", show=False)
    losses = {
        name: [line["loss"] for line in lines(tmp_path / name, "train")] for name in ("plain", "captured", "continued")
    }
    assert losses["captured"] == pytest.approx(losses["plain"], rel=1e-3)
    assert losses["continued"] == pytest.approx(losses["plain"], rel=1e-3)
