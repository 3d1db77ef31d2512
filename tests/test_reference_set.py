"""The utterances on which effective ranks are measured: drawn once, the same for every process, kept with the run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import soundfile
import torch
from conftest import babble

from sjepa import Encoder, UserError
from sjepa.audio.augment import AugmentConfig
from sjepa.config import Config
from sjepa.data.corpus import decode, scan_folder
from sjepa.data.loader import BatchReader
from sjepa.data.masking import MaskConfig
from sjepa.data.sampler import BatchPlan
from sjepa.files import hash_file
from sjepa.runs.folder import RunFolder
from sjepa.targets.layer import LayerChoice, LayerConfig
from sjepa.train.loop import pretrain
from sjepa.train.reference_set import draw_reference_set


def drawn(folder: Path, utterances: int, rank: int = 0, world_size: int = 1, cached: bool = False) -> torch.Tensor:
    corpus = scan_folder(folder, 15.0)
    corpus = decode(corpus) if cached else corpus
    reader = BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=3, rank=rank, world_size=world_size)
    plan = BatchPlan(corpus.length, seconds=4.0, buckets=(1.0, 1.2), seed=3)
    return draw_reference_set(reader, plan, utterances)


def test_the_set_depends_on_seed_and_corpus_alone(corpus: Path) -> None:
    one = drawn(corpus, 5)
    assert one.shape == (5, round(1.4 * 16_000))  # six utterances have 1.4 s or more
    assert len({tuple(row) for row in one.tolist()}) == 5
    for other in (drawn(corpus, 5), drawn(corpus, 5, 1, 2), drawn(corpus, 5, cached=True)):
        assert torch.equal(one, other)


def test_every_crop_is_a_stretch_of_some_utterance_and_at_most_two_and_a_half_seconds_long(tmp_path: Path) -> None:
    for index in range(3):
        soundfile.write(tmp_path / f"{index}.wav", babble(4.0, index), 16_000)
    found = drawn(tmp_path, 100)
    assert found.shape == (3, 40_000)
    for crop in found.numpy():
        holders = [path for path in tmp_path.iterdir() if crop.tobytes() in path.read_bytes()]
        assert len(holders) == 1


def test_the_set_has_corpora_by_weight_as_the_first_epoch(corpus: Path) -> None:
    opened = scan_folder(corpus, 15.0)
    reader = BatchReader(opened, MaskConfig(), AugmentConfig(), seed=3)
    halves = ((6, 1.0), (len(opened) - 6, 0.4))  # as if they were two corpora
    plan = BatchPlan(opened.length, seconds=4.0, buckets=(1.0,), seed=3, shares=halves)
    used = np.flatnonzero(plan.choose_buckets(0) >= 0).tolist()
    left_out = [utterance for utterance in range(len(opened)) if utterance not in used]
    assert left_out
    assert min(left_out) >= 6

    def hold(crop: np.ndarray, utterances: list[int]) -> bool:
        return any(crop.tobytes() in opened.read(utterance).tobytes() for utterance in utterances)

    found = draw_reference_set(reader, plan, 100).numpy()
    assert len(found) == len(used)
    assert all(hold(crop, used) and not hold(crop, left_out) for crop in found)


def test_damaged_utterances_are_passed_over(corpus: Path, tmp_path: Path) -> None:
    for index, path in enumerate(sorted(corpus.iterdir())):
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content if index < 3 else content[:44] + bytes(len(content) - 44))
    assert len(drawn(tmp_path, 12)) == 3
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:44] + bytes(len(path.read_bytes()) - 44))
    with pytest.raises(UserError, match="cannot read any of the 12 utterances drawn for measurements"):
        drawn(tmp_path, 12)


def test_ranks_of_a_run_are_those_of_its_stored_set_by_singular_values(finished_run: Path) -> None:
    """Every part by itself: the target encoder of the last checkpoint, layer by layer, and numpy's decomposition."""
    run = RunFolder(finished_run)
    folder, config = run.checkpoint(run.step), run.config()
    waveforms = safetensors.torch.load_file(folder / "reference.safetensors")["waveforms"]
    targets = safetensors.torch.load_file(folder / "targets.safetensors")
    prefix = "features.encoder."
    encoder = Encoder(config.encoder).eval()
    encoder.load_state_dict({n.removeprefix(prefix): t for n, t in targets.items() if n.startswith(prefix)})
    with torch.no_grad():
        utterances = [encoder(waveform[None].float() / 32768.0).hidden_states[1:] for waveform in waveforms]
    check = [event for event in run.events() if event["event"] == "layers"][-1]
    seed = int(np.random.SeedSequence((config.seed,)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    total = sum(layers[0].shape[1] for layers in utterances)
    chosen = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[: config.layer.frames]
    for layer, measured in enumerate(check["effective_ranks"]):
        frames = torch.cat([layers[layer][0] for layers in utterances])[chosen].double().numpy()
        singular = np.linalg.svd(frames - frames.mean(0), compute_uv=False)
        p = singular / singular.sum()
        assert measured == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-3)


def test_a_run_keeps_its_set_when_it_continues(corpus: Path, tmp_path: Path, micro: Callable[..., Config]) -> None:
    config, run = micro(train={"checkpoint_every": 3, "keep_checkpoints": 9}), RunFolder(tmp_path / "run")
    assert pretrain(config, corpus, run.path, show=False)
    stored = (run.checkpoint(3) / "reference.safetensors").read_bytes()
    ranks = [event["effective_ranks"] for event in run.events() if event["event"] == "layers"]
    other = torch.randint(-3000, 3000, (4, 20_000), dtype=torch.int16)
    for step in run.checkpoint_steps:
        assert (run.checkpoint(step) / "reference.safetensors").read_bytes() == stored
        if step > 6:
            shutil.rmtree(run.checkpoint(step))
    safetensors.torch.save_file({"waveforms": other}, run.checkpoint(6) / "reference.safetensors")
    state = json.loads((run.checkpoint(6) / "state.json").read_text())
    state["files"]["reference.safetensors"] = hash_file(run.checkpoint(6) / "reference.safetensors")
    (run.checkpoint(6) / "state.json").write_text(json.dumps(state))
    assert pretrain(config, corpus, run.path, show=False)
    again = [event["effective_ranks"] for event in run.events() if event["event"] == "layers"]
    assert len(again) == len(ranks)
    assert again[:3] == ranks[:3]
    assert all(a != b for a, b in zip(again[3:], ranks[3:], strict=True))  # what is stored is what is measured on
    assert torch.equal(safetensors.torch.load_file(run.checkpoint(12) / "reference.safetensors")["waveforms"], other)


def test_hysteresis_keeps_a_used_layer_until_another_is_clearly_higher() -> None:
    choice = LayerChoice(LayerConfig(smoothing=0.0, hysteresis=0.1))
    for ranks, used, active in (
        ([5.0, 4.0], False, 0),
        ([5.0, 5.1], False, 1),  # not read yet: the highest
        ([5.4, 5.0], True, 1),  # higher by 8%
        ([5.6, 5.0], True, 0),
        ([5.0, 5.4], True, 0),
    ):
        choice.observe(ranks, used)
        assert choice.active == active
    continued = LayerChoice(LayerConfig(smoothing=0.0, hysteresis=0.1))
    continued.load(choice.state())
    assert continued.active == 0


def test_the_layer_of_an_offline_codebook_stays_until_its_phase_ends() -> None:
    choice = LayerChoice(LayerConfig(smoothing=0.0))
    choice.observe([1.0, 2.0, 1.5])
    choice.hold()
    choice.observe([1.0, 2.0, 3.0])
    continued = LayerChoice(LayerConfig(smoothing=0.0))
    continued.load(choice.state())
    assert (choice.active, continued.active) == (1, 1)
    continued.release()
    assert continued.active == 2
