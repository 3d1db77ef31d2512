"""Every task, end to end on a small corpus in its true layout: it learns, and a seed fixes the result."""

import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import superb_corpora as corpora
import torch
from safetensors.torch import load_file

from sjepa.data.synthetic import VOICES
from sjepa.errors import UserError
from sjepa.evaluate.superb import TaskName, protocol, search
from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.decode import BOARD, BeamSettings
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.superb.metrics import ACCURACY
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.task import Recipe, Task
from sjepa.evaluate.superb.tasks import find_entry, make_task
from sjepa.evaluate.superb.text import Phones
from sjepa.evaluate.upstream import load_upstream
from sjepa.model.encoder_config import EncoderConfig
from sjepa.progress import Bar
from sjepa.runs.encoder import Encoder

pytest.importorskip("espeakng_loader")


def shortened(task: Task, steps: int, batch: int = 8) -> Task:
    """The same task for a few steps, with one batch a step and a narrow recurrent head."""
    recipe = Recipe(steps, task.recipe.lr, batch, 1, max(1, steps // 2), "lite")
    if isinstance(task, SequenceTask) and task.recurrent:
        return replace(task, recipe=recipe, recurrent=64, augment=None)
    return replace(task, recipe=recipe)


def run(task: Task, out: Path, rate: float, encoder: str = "logmel", **options: Any) -> dict[str, Any]:
    return LearningRateSearch(task, load_upstream(encoder), out, **options).run([rate])


Corpus = Callable[[Path], Path]


@pytest.mark.parametrize(
    ("name", "make", "steps", "rate", "chance", "margin"),
    [
        ("er", corpora.iemocap, 60, 3e-3, 25.0, 30.0),
        ("ks", corpora.speech_commands, 150, 3e-3, 20.0, 30.0),
        ("ic", corpora.fluent_commands, 100, 3e-3, 25.0, 30.0),
        ("sid", corpora.voxceleb, 60, 3e-3, 100 / 6, 40.0),
        ("ravdess", corpora.ravdess, 40, 3e-3, 25.0, 20.0),
        ("coffee", corpora.coffee, 150, 3e-3, 50.0, 15.0),
    ],
)
def test_a_classification_task_learns(
    name: TaskName, make: Corpus, steps: int, rate: float, chance: float, margin: float, tmp_path: Path
) -> None:
    task = make_task(name, make(tmp_path / "data"), lite=True)
    assert isinstance(task, ClassTask)
    results = run(shortened(task, steps), tmp_path / "out", rate)
    score = results["metrics"]["slot_f1" if name == "coffee" else "accuracy"]
    assert score > chance + margin
    assert results["chance"]["slot_f1" if name == "coffee" else "accuracy"] == pytest.approx(chance, abs=2)
    assert results["encoder"]["parameters"] == 0
    assert results["audio_seconds_per_second"] > 0
    assert len(results["folds"]) == (5 if name in ("er", "ravdess") else 1)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpora.librispeech(tmp_path_factory.mktemp("numbers"), {"dev-clean": 14}, VOICES[:10])


def test_speech_recognition_learns_and_a_language_model_decodes_it(numbers: Path, tmp_path: Path) -> None:
    pytest.importorskip("flashlight")
    from sjepa.evaluate.superb.decode import PAPER, BeamDecoder, LanguageModel

    words = [word.upper() for word in corpora.NUMBERS]
    model = tmp_path / "numbers.arpa"
    unigrams = "".join(f"-0.9\t{word}\t0\n" for word in words)
    model.write_text(
        f"\n\\data\\\nngram 1={len(words) + 3}\nngram 2=1\n\n"
        f"\\1-grams:\n-99\t<s>\t0\n-0.9\t</s>\n-9\t<unk>\n{unigrams}\n"
        "\\2-grams:\n-0.8\t<s> ONE\n\n\\end\\\n"
    )
    decoders = {"paper": BeamDecoder(LanguageModel(model), PAPER)}
    task = shortened(make_task("asr", numbers, lite=True), 150)
    results = run(task, tmp_path / "out", 1e-2, "mfcc", decoders=decoders)
    assert results["metrics"]["wer"] < 60  # 83 is naming one of the six words each time
    assert results["decoded"]["paper"]["wer"] <= results["metrics"]["wer"]
    assert results["decoders"]["paper"]["beam"] == 100
    line = (tmp_path / "out" / "predictions.txt").read_text().splitlines()[0].split("\t")
    assert len(line) == 3
    assert (tmp_path / "out" / "predictions-paper.txt").is_file()


def test_phoneme_recognition_learns(numbers: Path, tmp_path: Path) -> None:
    task = shortened(make_task("pr", numbers, lite=True), 150)
    results = run(task, tmp_path / "out", 1e-2, "mfcc+context")
    assert results["metrics"]["per"] < 60
    assert results["chance"] == {}


def test_slot_filling_learns(tmp_path: Path) -> None:
    task = shortened(make_task("sf", corpora.snips(tmp_path / "data"), lite=True), 150)
    metrics = run(task, tmp_path / "out", 1e-2, "mfcc")["metrics"]
    assert metrics["slot_type_f1"] > 70  # a guess is right half the time
    assert metrics["slot_value_cer"] < 80


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
    with pytest.raises(UserError, match="other weights of logmel, such as an earlier state of the run: choose another"):
        run(task, tmp_path / "stopped", 1e-3)


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


def noises(folder: Path, number: int) -> list[Utterance]:
    """Very short recordings of many lengths; their labels are random, so that a head never has done with them."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    made = []
    for index in range(number):
        samples = 0.1 * generator.standard_normal(generator.integers(800, 4800))
        soundfile.write(folder / f"{index}.wav", samples, 16_000)
        made.append(Utterance(str(index), folder / f"{index}.wav", (str(generator.integers(2)),)))
    return made


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


def test_symbols_are_part_of_the_labelling(numbers: Path) -> None:
    task = make_task("pr", numbers, lite=True)
    assert isinstance(task, SequenceTask)
    assert isinstance(task.symbols, Phones)
    more = replace(task, symbols=Phones((*task.symbols.phones, "XX")))
    assert search.hash_labels(more) != search.hash_labels(task)


@dataclass
class Shouting:
    """A decoder that says the same of everything."""

    settings: BeamSettings = BOARD

    def __call__(self, log_probabilities: torch.Tensor) -> str:
        assert log_probabilities.device.type == "cpu"
        return "AA"


def test_what_is_done_is_not_done_again_and_only_the_tested_head_stays(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, upstream = shortened(make_task("pr", numbers, lite=True), 2), load_upstream("logmel")
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

    other = LearningRateSearch(task, upstream, tmp_path)
    stop_at(other, 1)
    with pytest.raises(StopError):
        other.run([1e-3])  # another rate is trained
    head.unlink()  # then it is trained again
    decoded = LearningRateSearch(task, upstream, tmp_path, decoders=shouting).run([1e-2, 1e-4])
    assert decoded["folds"][0]["dev_curve"] == results["folds"][0]["dev_curve"]


def test_a_seed_may_be_any_number(tmp_path: Path) -> None:
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=2), lite=True), 2)
    results = run(task, tmp_path / "out", 1e-3, seed=20240101 * 10**12)
    assert results["folds"] != run(task, tmp_path / "other", 1e-3, seed=20240101)["folds"]


def test_a_step_looks_at_the_device_once(numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each float() or truth of a tensor on a GPU waits for it."""
    task = replace(make_task("pr", numbers, lite=True), recipe=Recipe(1, 1e-3, 4, 3, 1))
    evaluation = LearningRateSearch(task, load_upstream("logmel"), tmp_path)
    evaluation.measure()
    evaluation.identity = evaluation.describe()
    head = evaluation.open(0, 1e-3)
    batches = list(itertools.islice(evaluation.rank_batches(task.folds[0], 0, 0), 3))
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


def labelled(name: str, *labels: tuple[str, ...]) -> list[Utterance]:
    return [Utterance(f"{name}{index}", Path(f"{name}{index}.wav"), label) for index, label in enumerate(labels)]


def test_chance_is_one_answer_to_everything_and_training_decides_which() -> None:
    happy, sad, calm = ("happy",), ("sad",), ("calm",)
    train = labelled("train", sad, happy, happy, calm)
    test = labelled("test", sad, sad, sad, happy, calm)
    fold = Fold("emotions", train, train, test)
    recipe = Recipe(1, 1e-3, 1, 1, 1)
    assert ClassTask("er", recipe, [fold], find_entry("er").metrics).chance(fold) == {"accuracy": pytest.approx(20.0)}
    balanced = ClassTask("ks", recipe, [fold], find_entry("ks").metrics, balanced=True).chance(fold)
    assert balanced == {"accuracy": pytest.approx(20.0), "balanced_accuracy": pytest.approx(100 / 3)}

    # Every label of training is another; the most frequent values are mocha and large, though most have no size.
    orders = labelled("train", ("mocha", ""), ("tea", "large"), ("latte", ""), ("mocha", "small"), ("juice", "large"))
    asked = labelled("test", ("mocha", ""), ("mocha", "large"), ("tea", ""))
    fold = Fold("orders", orders, orders, asked)
    chance = ClassTask("coffee", recipe, [fold], find_entry("coffee").metrics, optional=True).chance(fold)
    # 6 pairs are predicted, 4 are in the reference, and 3 are in both.
    assert chance == {"slot_f1": pytest.approx(100 * 2 * 3 / (6 + 4)), "accuracy": pytest.approx(100 / 3)}


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
    with pytest.raises(UserError, match="--steps 0: at least one"):
        make_task("sid", tmp_path / "data", lite=True, steps=0)


def test_an_encoder_that_is_not_frozen_is_found_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    Encoder(EncoderConfig(16, 1, 2, 16, conv_channels=8, position_kernel=8, position_groups=2)).save_pretrained(
        tmp_path / "encoder"
    )
    upstream = load_upstream(str(tmp_path / "encoder"))
    task = shortened(make_task("sid", corpora.voxceleb(tmp_path / "data", speakers=2), lite=True), 2)
    before = upstream.fingerprint()
    LearningRateSearch(task, upstream, tmp_path / "out").run([1e-3])
    assert upstream.fingerprint() == before

    def drifting(utterances: Sequence[np.ndarray]) -> list[torch.Tensor]:
        assert isinstance(upstream.network, Encoder)
        upstream.network.feature_projection.projection.bias.add_(1e-3)
        return upstream.run(utterances)

    with pytest.raises(RuntimeError, match="the encoder's weights changed"):
        LearningRateSearch(task, replace(upstream, run=drifting), tmp_path / "drifting").run([1e-3])
