"""Masked prediction on held-out audio: its numbers, and that measuring leaves a run as it is."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import soundfile
import torch
from conftest import NO_DROPOUT, babble
from pages import Page
from small_runs import lines, one_batch
from test_watch import render_status

from sjepa import UserError
from sjepa.config import Config
from sjepa.data.opening import open_corpus
from sjepa.report.page import write_page
from sjepa.train.held_out import HeldOut
from sjepa.train.loop import pretrain
from sjepa.train.step import train_step

Make = Callable[..., Config]


@pytest.fixture
def held_out_audio(tmp_path: Path) -> Path:
    folder = tmp_path / "held_out_audio"
    folder.mkdir()
    for index in range(5):
        soundfile.write(folder / f"{index}.wav", babble(1.3, 100 + index), 16_000)
    return folder


def test_the_numbers_are_those_of_a_loop_over_masked_frames(corpus: Path, held_out_audio: Path, micro: Make) -> None:
    config = micro()
    run, batch = one_batch(config, corpus, phase=2)
    with torch.no_grad():
        for weights in (*run.model.head.parameters(), *run.model.predictor.parameters()):
            weights.mul_(10.0)  # logits that differ, which dropout would change
    run.reference_set = batch.waveforms
    held_out = HeldOut(run, open_corpus(held_out_audio, 15.0, "none", 0.0))
    found = held_out.measure(run)
    assert len(held_out.training) == len(held_out.held_out) == min(5, len(batch.waveforms))
    run.model.eval()
    for name, waveforms in (("training", held_out.training), ("held_out", held_out.held_out)):
        divergence, right = [], []
        for audio, mask in zip(waveforms, held_out.masks, strict=True):
            clean, mask = audio[None].float() / 32768.0, mask[None]
            q = run.targets(run.targets.frame_features(clean, run.active_layer))[0][0].double().numpy()
            z = run.model.encoder(clean, mask=mask).last
            logits = run.model.head(run.model.predictor(z, mask))[0].double().detach().numpy()
            for t in np.flatnonzero(mask[0].numpy()):
                log_p = logits[t] - np.log(np.exp(logits[t]).sum())
                divergence.append(sum(q[t][k] * (np.log(q[t][k]) - log_p[k]) for k in range(len(log_p)) if q[t][k] > 0))
                right.append(q[t].argmax() == log_p.argmax())
        assert found[f"kl_{name}"] == pytest.approx(np.mean(divergence), rel=1e-4)
        assert found[f"accuracy_{name}"] == pytest.approx(np.mean(right))


def test_memorised_audio_does_not_help_on_held_out_audio(corpus: Path, held_out_audio: Path, micro: Make) -> None:
    config = micro(
        encoder=NO_DROPOUT | {"layerdrop": 0.0, "hidden_size": 64, "feature_gradient_scale": 1.0},
        predictor={"dropout": 0.0},
        phase1={"steps": 120, "lr": 3e-3, "warmup": 10, "augment_until": 0},
    )
    run, batch = one_batch(config, corpus)
    run.reference_set = batch.waveforms
    held_out = HeldOut(run, open_corpus(held_out_audio, 15.0, "none", 0.0))
    for step in range(120):
        run.step = step
        train_step(run, config.schedule()[0], batch, None)
    found = held_out.measure(run)
    assert found["accuracy_training"] > found["accuracy_held_out"] + 0.2
    assert found["kl_training"] < found["kl_held_out"]


def test_measuring_changes_nothing_in_a_run(
    corpus: Path, held_out_audio: Path, tmp_path: Path, micro: Make, finished_run: Path
) -> None:
    assert pretrain(micro(train={"held_out": str(held_out_audio)}), corpus, tmp_path / "with", show=False)
    found = lines(tmp_path / "with", "held_out")
    assert [line["step"] for line in found] == [line["step"] for line in lines(tmp_path / "with", "layers")]
    assert [line for line in lines(tmp_path / "with") if line["event"] != "held_out"] == lines(finished_run)
    ours, theirs = (
        safetensors.torch.load_file(run / "encoder" / "model.safetensors") for run in (tmp_path / "with", finished_run)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    page = Page(write_page(tmp_path / "with", tmp_path / "page.html"))
    assert page.series("held_out", "held-out audio") == (
        [line["step"] for line in found],
        [line["accuracy_held_out"] for line in found],
    )
    assert "held_out" not in Page(write_page(finished_run, tmp_path / "page.html")).charts
    shown = render_status(tmp_path / "with", total=12)
    assert re.search(rf"masked, held-out audio +{found[-1]['accuracy_held_out']:.1%}", shown)


def test_audio_that_cannot_be_held_out_is_refused(corpus: Path, tmp_path: Path, micro: Make) -> None:
    with pytest.raises(
        UserError, match=r"held_out must be audio that the run does not train on, but .* is its training audio"
    ):
        pretrain(micro(train={"held_out": str(corpus)}), corpus, tmp_path / "run", show=False)
    copied = shutil.copytree(corpus, tmp_path / "more", ignore=shutil.ignore_patterns("03.wav"))
    with pytest.raises(UserError, match="more is its training audio"):
        pretrain(micro(train={"held_out": str(copied)}), f"{corpus},{copied}", tmp_path / "run", show=False)
    short = tmp_path / "short"
    short.mkdir()
    soundfile.write(short / "a.wav", babble(0.5, 0), 16_000)
    with pytest.raises(UserError, match=r"every utterance of .*short is shorter than 1 s"):
        pretrain(micro(train={"held_out": str(short)}), corpus, tmp_path / "run", show=False)
    with pytest.raises(UserError, match="nowhere"):
        pretrain(micro(train={"held_out": str(tmp_path / "nowhere")}), corpus, tmp_path / "run", show=False)
