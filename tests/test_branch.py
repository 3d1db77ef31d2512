"""Runs that start from others: a second phase from the first phase of another run, or another encoder."""

import dataclasses
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from calls import sjepa
from conftest import change
from processes import start_ranks
from small_runs import Make, arguments, lines

from sjepa import Encoder, EncoderConfig, UserError
from sjepa.runs.folder import RunFolder
from sjepa.train.branch import branch, find_unshared
from sjepa.train.initial_encoder import read_initial_encoder
from sjepa.train.loop import pretrain


def test_a_branch_that_changes_nothing_is_the_run_it_left(
    corpus: Path, tmp_path: Path, micro: Make, finished_run: Path
) -> None:
    branch(finished_run, tmp_path / "branch", micro())
    assert pretrain(micro(), corpus, tmp_path / "branch", show=False)
    assert lines(tmp_path / "branch") == lines(finished_run)
    ours, theirs = (
        safetensors.torch.load_file(run / "encoder" / "model.safetensors")
        for run in (tmp_path / "branch", finished_run)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_branch_has_the_log_of_the_phases_that_it_shares(tmp_path: Path, micro: Make, finished_run: Path) -> None:
    assert branch(finished_run, tmp_path / "branch", micro(phase2={"lr": 5e-4})) == 1
    shared = [line for line in lines(finished_run) if line["step"] <= 6 and line.get("phase") != 2]
    assert lines(tmp_path / "branch") == shared
    assert shared[-1]["step"] == 6


def test_a_branch_shares_phase_1_and_goes_its_own_way_in_phase_2(
    corpus: Path, tmp_path: Path, micro: Make, finished_run: Path
) -> None:
    config = micro(phase2={"hard": True, "steps": 4, "k": 9})
    assert branch(finished_run, tmp_path / "branch", config) == 1
    assert pretrain(config, corpus, tmp_path / "branch", show=False)
    first = [line for line in lines(finished_run, "train") if line["phase"] == 1]
    assert lines(tmp_path / "branch", "train")[: len(first)] == first
    assert lines(tmp_path / "branch", "phase")[-1]["k"] == 9
    with pytest.raises(UserError, match="these cannot differ: seed was 0, now 1"):
        branch(finished_run, tmp_path / "other", micro(seed=1))
    with pytest.raises(UserError, match="is not empty"):
        branch(finished_run, tmp_path / "branch", config)
    with pytest.raises(UserError, match="not a run"):
        branch(corpus, tmp_path / "other", config)


def test_a_run_can_start_from_another_encoder(corpus: Path, tmp_path: Path, micro: Make, finished_run: Path) -> None:
    config = micro(phase1={"steps": 1, "lr": 0.0}, phase2={"steps": 1, "lr": 0.0}, train={"weight_decay": 0.0})
    config = dataclasses.replace(config, init_from=str(finished_run))
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    ours, theirs = (
        safetensors.torch.load_file(run / "encoder" / "model.safetensors") for run in (tmp_path / "run", finished_run)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    larger = change(config, encoder={"layers": 3})
    with pytest.raises(UserError, match=r"another size than the config: set --encoder\.layers 2"):
        pretrain(larger, corpus, tmp_path / "larger", show=False)
    with pytest.raises(UserError, match=r"another size than the config: use --preset compact$"):
        pretrain(dataclasses.replace(config, init_from="english-compact"), corpus, tmp_path / "shipped", show=False)


def test_a_size_that_another_encoder_does_not_state_is_the_default(tmp_path: Path) -> None:
    config = EncoderConfig(hidden_size=32, layers=1, heads=2, inner_size=64, conv_channels=32)
    Encoder(config).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings.pop("num_conv_pos_embeddings") == EncoderConfig().position_kernel == 128
    (tmp_path / "config.json").write_text(json.dumps(settings))
    weights = read_initial_encoder(str(tmp_path), config)
    assert weights.keys() == Encoder.from_pretrained(tmp_path).state_dict().keys()
    with pytest.raises(UserError, match=r"another size than the config: set --encoder\.position-kernel 128$"):
        read_initial_encoder(str(tmp_path), dataclasses.replace(config, position_kernel=16))


def test_the_size_of_another_encoder_is_checked_before_the_layer_that_is_read(corpus: Path, tmp_path: Path) -> None:
    call = (
        "pretrain",
        "--preset",
        "tiny",
        "--data",
        corpus,
        "--out",
        tmp_path / "run",
        "--init-from",
        "english-compact",
    )
    for choice in ((), ("--layer.choice", 4)):
        status, output, _ = sjepa(*call, "--phase1.targets", "encoder-gmm", *choice)
        assert status == 2
        assert "another size than the config: use --preset compact" in output


def test_a_run_that_starts_from_an_encoder_can_predict_its_features_from_the_start(
    corpus: Path, tmp_path: Path, micro: Make, finished_run: Path
) -> None:
    config = micro(phase1={"targets": "encoder-gmm"}, layer={"choice": 1}, init_from=str(finished_run))
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    assert [(p["targets"], p["active_layer"]) for p in lines(tmp_path / "run", "phase")] == [
        ("encoder-gmm", 1),
        ("online-gmm", 1),
    ]
    # The first phase predicts the given encoder, which does not move. The second starts from the trained one.
    saved = safetensors.torch.load_file(RunFolder(tmp_path / "run").checkpoint(6) / "targets.safetensors")
    given = safetensors.torch.load_file(finished_run / "encoder" / "model.safetensors")
    assert all(torch.equal(saved[f"features.encoder.{name}"], weights) for name, weights in given.items())
    with pytest.raises(UserError, match=r"no effective rank is measured before phase 1; set layer\.choice"):
        micro(phase1={"targets": "encoder-gmm"}, init_from=str(finished_run))


def test_a_branch_of_a_frozen_codebook_keeps_its_size(corpus: Path, tmp_path: Path, micro: Make) -> None:
    config = micro(phase1={"targets": "best-rq"}, phase2={"targets": "same"})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    with pytest.raises(UserError, match=r"cannot differ: phase1\.k was 8, now 9"):
        branch(tmp_path / "run", tmp_path / "other", change(config, phase1={"k": 9}))
    assert not (tmp_path / "other").exists()


def test_ranks_branch_together(corpus: Path, tmp_path: Path, micro: Make, finished_run: Path) -> None:
    config = micro(phase2={"steps": 2, "visible_loss_until": 2})
    call = [*arguments(config, corpus, tmp_path / "branch", tmp_path), "--branch-from", str(finished_run)]
    ranks = start_ranks(call, tmp_path / "output.txt", 2)
    assert [rank.wait() for rank in ranks] == [0, 0], "".join(rank.text for rank in ranks)
    assert f"branches from {finished_run} at the end of its first phase" in ranks[0].text
    assert lines(tmp_path / "branch", "train")[-1]["step"] == 8


def test_lines_of_the_log_may_differ_unless_they_restart_components(micro: Make) -> None:
    for reseed, differing in ((False, []), (True, ["train.log_every"])):
        past, config = (micro(gmm={"reseed": reseed}, train={"log_every": every}) for every in (2, 3))
        assert [each.name for each in find_unshared(past, config, 2)] == differing
        assert find_unshared(past, config, 1) == []
