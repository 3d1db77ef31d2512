"""Training a head on a frozen encoder: the rate that is best on dev, the logged facts, no waiting for the device."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import superb_corpora as corpora
import torch
from superb_runs import noises, run, shortened

from sjepa.errors import UserError
from sjepa.evaluate.superb import protocol
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.superb.protocol import HeadTraining, LearningRateSearch, RankBatch
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.upstream import hash_weights, load_upstream
from sjepa.model.encoder_config import EncoderConfig
from sjepa.progress import Bar
from sjepa.runs.encoder import Encoder

pytest.importorskip("espeakng_loader")


def open_head(corpus: Path, out: Path) -> tuple[LearningRateSearch, HeadTraining, list[RankBatch]]:
    """A head of phoneme recognition, and the three batches of its first step."""
    task = replace(make_task("pr", corpus, lite=True), recipe=Recipe(1, 1e-3, 4, 3, 1))
    evaluation = LearningRateSearch(task, load_upstream("logmel"), out)
    evaluation.measure()
    evaluation.identity = evaluation.describe()
    batches = list(itertools.islice(evaluation.rank_batches(task.folds[0], 0, 0), 3))
    return evaluation, evaluation.open(0, 1e-3), batches


def test_a_step_looks_at_the_device_once(spoken_numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each float() or truth of a tensor on a GPU waits for it."""
    evaluation, head, batches = open_head(spoken_numbers, tmp_path)
    looks: list[int] = []
    tolist = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> Any:
        looks.append(tensor.numel())
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    for name in ("__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    evaluation.step(head.downstream, head.optimizer, batches, 0, 0)
    assert looks == [3 + 1]  # a loss of each batch, and the norm of the gradient


def test_a_step_follows_the_mean_gradient_of_its_batches_unless_it_is_not_finite(
    spoken_numbers: Path, tmp_path: Path
) -> None:
    evaluation, head, batches = open_head(spoken_numbers, tmp_path)
    task, downstream = evaluation.task, head.downstream
    parameters = list(downstream.parameters())
    losses = [
        task.loss(downstream.head(downstream.featurizer(states), frames), frames, [u.label for u in utterances])
        for utterances, states, frames, _ in batches
    ]
    mean = torch.stack(losses).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(mean, parameters)])
    wanted = gradient * min(1.0, task.clip / float(gradient.norm()))
    before = torch.nn.utils.parameters_to_vector(parameters).detach()
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    loss = evaluation.step(downstream, optimizer, batches, 0, 0)
    assert loss == pytest.approx(mean.item(), rel=1e-5)
    after = torch.nn.utils.parameters_to_vector(parameters).detach()
    torch.testing.assert_close(before - after, wanted, rtol=1e-3, atol=1e-6)
    batches[1].states[0, 0, 0] = torch.nan
    evaluation.step(downstream, optimizer, batches, 0, 0)
    assert torch.equal(torch.nn.utils.parameters_to_vector(parameters), after)


def test_a_plan_from_a_step_on_is_the_rest_of_the_whole_plan(spoken_numbers: Path, tmp_path: Path) -> None:
    evaluation, _, batches = open_head(spoken_numbers, tmp_path)
    (fold,) = evaluation.task.folds
    whole = list(itertools.islice(evaluation.plan(fold, 0, 0), 12))
    assert [utterances for utterances, _ in whole[:3]] == [batch.utterances for batch in batches]
    assert list(itertools.islice(evaluation.plan(fold, 0, 2), 6)) == whole[6:]  # each step takes three batches


def test_a_crop_is_random_in_training_and_the_middle_elsewhere(tmp_path: Path) -> None:
    samples = np.arange(16_004, dtype=np.int16)
    soundfile.write(tmp_path / "a.wav", samples, 16_000)
    store = FeatureStore(load_upstream("logmel"), cache_gb=0.0)
    utterance = Utterance("a", tmp_path / "a.wav", ("a",), crop=16_000)
    crops = [store.read(utterance, (seed, 0)) for seed in (-1, *range(60))]
    begins = [round(32_768 * float(crop[0])) for crop in crops]
    for begin, crop in zip(begins, crops, strict=True):
        np.testing.assert_array_equal(crop, samples[begin : begin + 16_000].astype(np.float32) / 32_768)
    assert begins[0] == 2
    assert set(begins[1:]) == {0, 1, 2, 3, 4}
    assert np.array_equal(crops[1], store.read(utterance, (0, 0)))


def test_the_speed_on_a_gpu_is_measured_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        """Two thirds of a second between two records; done when asked for the second time."""

        def __init__(self, enable_timing: bool) -> None:
            self.asked = 0

        def record(self) -> None:
            pass

        def query(self) -> bool:
            self.asked += 1
            return self.asked > 1

        def elapsed_time(self, end: "Event") -> float:
            assert end.asked > 1
            return 2000 / 3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 10**9, 4 * 10**9))  # free and in all
    made = noises(tmp_path / "audio", 3)
    store = FeatureStore(replace(load_upstream("logmel"), device=torch.device("cuda")))
    assert store.room == 10**9
    for _ in store.batches([([u], -1) for u in made]):
        assert len(store.timings) == 1  # the batch before is done, this one is not
    seconds = sum(soundfile.info(u.path).duration for u in made)
    assert store.speed == pytest.approx(seconds / 2)


def test_the_progress_line_shows_the_best_of_all_looks_at_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    class Recorder(Bar):
        def advance(self, steps: int = 1, note: str | None = None) -> None:
            notes.extend([] if note is None else [note])

    @contextmanager
    def recorded(*_: object) -> Iterator[Bar]:
        yield Recorder(None, None)

    monkeypatch.setattr(protocol, "bar", recorded)
    task = make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=6), lite=True)
    task = replace(task, recipe=Recipe(10, 1e-3, 8, 1, 2))
    curve = run(task, tmp_path / "out", 3e-3, "mfcc")["folds"][0]["dev_curve"]
    assert curve[0]["accuracy"] < max(look["accuracy"] for look in curve)
    assert len(notes) == 10
    for step, note in enumerate(notes, 1):
        seen = [look["accuracy"] for look in curve if look["step"] <= step]
        assert note.startswith(f"best dev {max(seen):.2f}  loss " if seen else "loss ")


def test_a_sweep_keeps_the_rate_that_is_best_on_dev(tmp_path: Path) -> None:
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=3), lite=True), 20)
    evaluation = LearningRateSearch(task, load_upstream("mfcc"), tmp_path / "out")
    results = evaluation.run([1e-2, 1e-7])
    dev = results["dev"]["by_learning_rate"]
    assert dev["0.01"] > dev["1e-07"]
    assert results["learning_rate"] == 1e-2


def test_results_say_what_was_done(tmp_path: Path) -> None:
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=3), lite=True), 4)
    results = run(task, tmp_path / "out", 1e-3)
    assert results["protocol"]["name"] == "lite"
    assert results["protocol"]["steps"] == 4
    (data,) = results["data"]
    assert (data["train_utterances"], data["dev_utterances"], data["test_utterances"]) == (15, 3, 3)
    assert 0 < data["test_hours"] < data["train_hours"] < 0.01
    assert results["seed"] == 0
    assert results["versions"]["torch"] == torch.__version__
    assert [point["step"] for point in results["folds"][0]["dev_curve"]] == [2, 4]
    assert results["folds"][0]["layer_weights"] == [1.0]
    full = make_task("sid", tmp_path / "data").recipe
    assert (full.name, full.steps, full.lr, full.batch * full.accumulate) == ("full", 200_000, 1e-4, 32)
    with pytest.raises(UserError, match="--steps is for --lite"):
        make_task("sid", tmp_path / "data", steps=5)


def test_an_encoder_that_is_not_frozen_is_found_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    Encoder(EncoderConfig(16, 1, 2, 16, conv_channels=8, position_kernel=8, position_groups=2)).save_pretrained(
        tmp_path / "encoder"
    )
    upstream = load_upstream(str(tmp_path / "encoder"))
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=2), lite=True), 2)
    before = hash_weights(upstream.network)
    LearningRateSearch(task, upstream, tmp_path / "out").run([1e-3])
    assert hash_weights(upstream.network) == before

    def drifting(utterances: Sequence[np.ndarray]) -> list[torch.Tensor]:
        assert isinstance(upstream.network, Encoder)
        upstream.network.feature_projection.projection.bias.add_(1e-3)
        return upstream.run(utterances)

    with pytest.raises(RuntimeError, match="the encoder's weights changed"):
        LearningRateSearch(task, replace(upstream, run=drifting), tmp_path / "drifting").run([1e-3])
