"""Evaluations that are repeated or stopped: the same numbers, no work done twice, and other labels are refused."""

import itertools
import json
import os
import shutil
import signal
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
import superb_corpora as corpora
import torch
from safetensors.torch import load_file
from superb_runs import noises, run, shortened

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.superb import protocol, search
from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.decode import BOARD, BeamSettings
from sjepa.evaluate.superb.metrics import ACCURACY
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Fold
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.task import Recipe, Task
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.superb.text import Phones
from sjepa.evaluate.upstream import load_upstream
from sjepa.model.encoder_config import EncoderConfig
from sjepa.runs.encoder import Encoder

pytest.importorskip("espeakng_loader")


class StopError(Exception):
    pass


def stop_at(evaluation: LearningRateSearch, last: int) -> None:
    """Make an evaluation fail at this step."""
    step, count = evaluation.step, itertools.count(1)

    def until(*arguments: Any) -> float:
        if next(count) == last:
            raise StopError
        return step(*arguments)

    evaluation.step = until  # type: ignore[method-assign]


def test_the_same_seed_gives_the_same_numbers_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    data = corpora.voxceleb(tmp_path / "data", speakers=3)
    task = shortened(make_task("sid", data, lite=True), 12)
    whole = run(task, tmp_path / "whole", 1e-3)
    again = run(task, tmp_path / "again", 1e-3)
    assert whole["folds"] == again["folds"]

    evaluation = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "stopped")
    stop_at(evaluation, 9)
    with pytest.raises(StopError):
        evaluation.run([1e-3])
    resumed = run(task, tmp_path / "stopped", 1e-3)
    assert resumed["folds"] == whole["folds"]
    assert json.loads((tmp_path / "stopped" / "results.json").read_text())["folds"] == whole["folds"]
    with pytest.raises(UserError, match=r"an evaluation that differs in seed \(0, now 1\): choose another --out"):
        run(task, tmp_path / "stopped", 1e-3, seed=1)
    results = json.loads((tmp_path / "stopped" / "results.json").read_text())
    results["encoder"]["fingerprint"] = "of another step"
    (tmp_path / "stopped" / "results.json").write_text(json.dumps(results))
    with pytest.raises(
        UserError, match=r"other weights of logmel, such as an earlier state of the run: choose .*--replace"
    ):
        run(task, tmp_path / "stopped", 1e-3)


def test_an_evaluation_of_other_weights_is_replaced_on_request(tmp_path: Path) -> None:
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=3), lite=True), 4)
    config = EncoderConfig(16, 2, 2, 32, conv_channels=16, position_kernel=8, position_groups=2)
    encoder, out = str(tmp_path / "encoder"), tmp_path / "out"

    def save_encoder(seed: int) -> None:
        torch.manual_seed(seed)
        Encoder(config).save_pretrained(encoder)

    save_encoder(0)
    old = run(task, out, 1e-3, encoder)
    save_encoder(1)
    fresh = run(task, tmp_path / "fresh", 1e-3, encoder)
    (out / "predictions-board.txt").touch()
    (out / "notes.txt").touch()
    with pytest.raises(UserError, match=r"differs in encoder fingerprint .* seed"):
        run(task, out, 1e-3, encoder, seed=1, replace=True)
    assert json.loads((out / "results.json").read_text())["folds"] == old["folds"]
    assert run(task, out, 1e-3, encoder, replace=True)["folds"] == fresh["folds"]
    assert {path.name for path in out.iterdir()} == {"notes.txt", "predictions.txt", "results.json", "training"}
    (out / "results.json").unlink()  # an evaluation that was stopped after training
    save_encoder(2)
    with pytest.raises(UserError, match="of other weights"):
        run(task, out, 1e-3, encoder)
    assert run(task, out, 1e-3, encoder, replace=True)["encoder"] != fresh["encoder"]


def test_ctrl_c_ends_after_the_step_and_loses_none(tmp_path: Path) -> None:
    data = corpora.voxceleb(tmp_path / "data", speakers=3)
    task = shortened(make_task("sid", data, lite=True), 20)  # looks at dev: 10 and 20
    whole = run(task, tmp_path / "whole", 1e-3)
    evaluation = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "stopped")
    step, count = evaluation.step, itertools.count(1)

    def interrupted(*arguments: Any) -> float:
        if next(count) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    evaluation.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        evaluation.run([1e-3])
    again = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "stopped")
    left = iter(range(12, 0, -1))
    more = again.step
    again.step = lambda *arguments: (next(left), more(*arguments))[1]  # type: ignore[method-assign]
    assert again.run([1e-3])["folds"] == whole["folds"]
    assert next(left) == 1  # eleven of the twenty steps were left to do


def test_a_stop_changes_an_encoders_results_only_by_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps an utterance as its first batch made it; after a stop that may be another batch."""
    monkeypatch.setattr(protocol, "SAVE_EVERY", 20)
    torch.manual_seed(0)
    config = EncoderConfig(16, 2, 2, 32, conv_channels=16, position_kernel=8, position_groups=2)
    Encoder(config).save_pretrained(tmp_path / "encoder")
    upstream = load_upstream(str(tmp_path / "encoder"))
    made = noises(tmp_path / "audio", 260)
    fold = Fold("noises", made[:220], made[220:240], made[240:])  # more than 50 batches, within which lengths sort
    task = ClassTask("noises", Recipe(220, 1e-3, 2, 1, 220), [fold], (ACCURACY,))  # two epochs, in other batches
    whole = LearningRateSearch(task, upstream, tmp_path / "whole").run([1e-3])
    stopped = LearningRateSearch(task, upstream, tmp_path / "stopped")
    stop_at(stopped, 50)
    with pytest.raises(StopError):
        stopped.run([1e-3])
    resumed = LearningRateSearch(task, upstream, tmp_path / "stopped").run([1e-3])
    (before,), (after,) = (results["folds"][0]["dev_curve"] for results in (whole, resumed))
    assert before["loss"] > 0.01
    assert after["loss"] == pytest.approx(before["loss"], abs=1e-4)
    heads = [load_file(tmp_path / name / "training" / "fold1-lr0.001.safetensors") for name in ("whole", "stopped")]
    for name, weights in heads[0].items():
        torch.testing.assert_close(heads[1][name], weights, atol=1e-5, rtol=0)


def relabelled(task: ClassTask, **changes: Any) -> Task:
    """The same task with another label, name or crop of its last test utterance."""
    (fold,) = task.folds
    test = [*fold.test[:-1], replace(fold.test[-1], **changes)]
    return replace(task, folds=[replace(fold, test=test)])


def test_another_labelling_is_refused(tmp_path: Path) -> None:
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=3), lite=True), 4)
    assert isinstance(task, ClassTask)
    results = run(task, tmp_path / "out", 1e-3)
    assert len(results["labels"]) == 64
    for changed in (
        relabelled(task, label=("id10001",)),
        relabelled(task, name="another"),
        relabelled(task, crop=16_000 * 60),
    ):
        with pytest.raises(UserError, match=r"that differs in labels \(.*\): choose another --out"):
            run(changed, tmp_path / "out", 1e-3)
    (tmp_path / "out" / "results.json").unlink()  # the state of the training says it too
    with pytest.raises(UserError, match="differs in labels"):
        run(relabelled(task, label=("id10001",)), tmp_path / "out", 1e-3)


def test_symbols_are_part_of_the_labelling(spoken_numbers: Path) -> None:
    task = make_task("pr", spoken_numbers, lite=True)
    assert isinstance(task, SequenceTask)
    assert isinstance(task.symbols, Phones)
    more = replace(task, symbols=Phones((*task.symbols.phones, "XX")))
    assert search.hash_labels(more) != search.hash_labels(task)


@dataclass
class Shouting:
    """A decoder that says the same of everything."""

    settings: BeamSettings = BOARD

    def describe(self) -> dict[str, Any]:
        return asdict(self.settings)

    def __call__(self, log_probabilities: torch.Tensor) -> str:
        assert log_probabilities.device.type == "cpu"
        return "AA"


def test_what_is_done_is_not_done_again_and_only_the_tested_head_stays(
    spoken_numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, upstream = shortened(make_task("pr", spoken_numbers, lite=True), 2), load_upstream("logmel")
    results = LearningRateSearch(task, upstream, tmp_path).run([1e-2, 1e-4])
    (head,) = (tmp_path / "training").iterdir()
    assert head.name == f"fold1-lr{results['learning_rate']:g}.safetensors"
    assert {name.split(".")[0] for name in load_file(head)} == {"best"}

    again = LearningRateSearch(task, upstream, tmp_path)
    stop_at(again, 1)
    capsys.readouterr()
    assert again.run([1e-2, 1e-4]) == json.loads(json.dumps(results))
    assert "nothing to do" in capsys.readouterr().out

    shouting: Any = {"shout": Shouting()}
    decoding = LearningRateSearch(task, upstream, tmp_path, decoders=shouting)
    stop_at(decoding, 1)
    decoded = decoding.run([1e-2, 1e-4])
    assert decoded["metrics"] == results["metrics"]
    assert decoded["dev"] == results["dev"]
    assert decoded["decoded"]["shout"]["per"] > 0

    message = r"contains results of the learning rates 0\.01, 0\.0001, not 0\.001: choose another --out"
    with pytest.raises(UserError, match=message):
        LearningRateSearch(task, upstream, tmp_path).run([1e-3])
    assert head.is_file()
    head.unlink()  # then it is trained again
    decoded = LearningRateSearch(task, upstream, tmp_path, decoders=shouting).run([1e-2, 1e-4])
    assert decoded["folds"][0]["dev_curve"] == results["folds"][0]["dev_curve"]


def test_files_that_no_evaluation_wrote_stay_next_to_the_heads(tmp_path: Path) -> None:
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=2), lite=True), 2)
    training = tmp_path / "out" / "training"
    (training / "mine").mkdir(parents=True)
    for name in ("notes.txt", "fold1-lr0.5-copy.safetensors", "fold1-lr1e-05.safetensors"):
        (training / name).write_text("words")
    results = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "out").run([1e-2, 1e-4])
    kept = f"fold1-lr{results['learning_rate']:g}.safetensors"
    assert {path.name for path in training.iterdir()} == {kept, "mine", "notes.txt", "fold1-lr0.5-copy.safetensors"}


def test_a_seed_may_be_any_number(tmp_path: Path) -> None:
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=2), lite=True), 2)
    results = run(task, tmp_path / "out", 1e-3, seed=20240101 * 10**12)
    assert results["folds"] != run(task, tmp_path / "other", 1e-3, seed=20240101)["folds"]


def test_results_belong_to_the_audio_wherever_it_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A denoised or damaged copy with the same names and labels is another corpus."""
    corpora.ravdess(tmp_path / "data", actors=5)
    command = ["superb", "ravdess", "--lite", "--steps", "2", "--encoder", "logmel", "--out", str(tmp_path / "out")]
    dispatch([*command, "--data", str(tmp_path / "data")])
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    capsys.readouterr()
    dispatch([*command, "--data", str(tmp_path / "moved")])
    assert "nothing to do" in capsys.readouterr().out
    for file in (tmp_path / "moved").rglob("*.wav"):
        audio, rate = soundfile.read(file, dtype="int16")
        soundfile.write(file, audio // 2, rate)
    with pytest.raises(UserError, match=r"an evaluation that differs in audio \("):
        dispatch([*command, "--data", str(tmp_path / "moved")])


def test_results_of_a_language_model_are_not_replaced_by_those_of_another(spoken_numbers: Path, tmp_path: Path) -> None:
    task, upstream = shortened(make_task("pr", spoken_numbers, lite=True), 2), load_upstream("logmel")

    def decode(beam: int) -> None:
        decoders: Any = {"shout": Shouting(replace(BOARD, beam=beam))}
        LearningRateSearch(task, upstream, tmp_path, decoders=decoders).run([1e-2])

    decode(5)
    decode(5)
    with pytest.raises(UserError, match="was decoded with another language model or lexicon: choose another --out"):
        decode(6)
