"""Every task, end to end on a small corpus in its true layout: it learns, and its chance is known."""

from collections.abc import Callable
from pathlib import Path

import pytest
import superb_corpora as corpora
from superb_runs import run, shortened

from sjepa.evaluate.superb import TaskName
from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import find_entry, make_task

pytest.importorskip("espeakng_loader")


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


def test_speech_recognition_learns_and_a_language_model_decodes_it(spoken_numbers: Path, tmp_path: Path) -> None:
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
    task = shortened(make_task("asr", spoken_numbers, lite=True), 150)
    results = run(task, tmp_path / "out", 1e-2, "mfcc", decoders=decoders)
    assert results["metrics"]["wer"] < 60  # 83 is naming one of the six words each time
    assert results["decoded"]["paper"]["wer"] <= results["metrics"]["wer"]
    assert results["decoders"]["paper"]["beam"] == 100
    line = (tmp_path / "out" / "predictions.txt").read_text().splitlines()[0].split("\t")
    assert len(line) == 3
    assert (tmp_path / "out" / "predictions-paper.txt").is_file()


def test_phoneme_recognition_learns(spoken_numbers: Path, tmp_path: Path) -> None:
    task = shortened(make_task("pr", spoken_numbers, lite=True), 150)
    results = run(task, tmp_path / "out", 1e-2, "mfcc+context")
    assert results["metrics"]["per"] < 60
    assert results["chance"] == {}


def test_slot_filling_learns(tmp_path: Path) -> None:
    task = shortened(make_task("sf", corpora.snips(tmp_path / "data"), lite=True), 80)
    metrics = run(task, tmp_path / "out", 2e-2, "mfcc")["metrics"]
    assert metrics["slot_type_f1"] > 70  # a guess is right half the time
    assert metrics["slot_value_cer"] < 80


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
