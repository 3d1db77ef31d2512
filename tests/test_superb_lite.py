"""The lite protocol: which utterances it takes, how it splits them by speaker, and how often it looks at dev."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from superb_corpora import speakers

from sjepa.errors import UserError
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.records import (
    LITE_UTTERANCES,
    Label,
    Utterance,
    sample_each_label,
    sample_evenly,
    split_speakers,
)
from sjepa.evaluate.superb.tasks import find_entry, make_task
from sjepa.evaluate.superb.tasks.sid import limit_speakers

pytest.importorskip("espeakng_loader")


def test_lite_recognition_is_dev_clean_split_by_speaker(superb_data: dict[str, Path]) -> None:
    (fold,) = make_task("asr", superb_data["libri"] / "LibriSpeech", lite=True).folds
    parts = [speakers(part) for part in (fold.train, fold.dev, fold.test)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == 3
    assert sum(map(len, (fold.train, fold.dev, fold.test))) == 12


def test_lite_keyword_spotting_knows_all_classes_of_the_full_one(tmp_path: Path) -> None:
    folder, test = tmp_path / "speech_commands_v0.01", tmp_path / "speech_commands_test_set_v0.01"
    for word, each in (("bed", 5000), ("stop", 3000), ("yes", 3000), ("_background_noise_", 2)):
        (folder / word).mkdir(parents=True)
        for number in range(each):
            (folder / word / f"{number:08x}_nohash_0.wav").touch()
    for label in ("_silence_", "_unknown_", "stop", "yes"):
        (test / label).mkdir(parents=True)
        for number in range(300):
            (test / label / f"{number:08x}_nohash_0.wav").touch()

    def classes(part: list[Utterance]) -> set[Label]:
        return {u.label for u in part}

    full, lite = (make_task("ks", tmp_path, lite=lite) for lite in (False, True))
    assert isinstance(full, ClassTask)
    assert isinstance(lite, ClassTask)
    assert lite.classes == full.classes == [["_silence_", "_unknown_", "stop", "yes"]]
    (everything,), (few,) = full.folds, lite.folds
    for name, most in zip(("train", "dev", "test"), LITE_UTTERANCES, strict=True):
        assert len(getattr(few, name)) <= most < len(getattr(everything, name))
        assert classes(getattr(few, name)) == classes(getattr(everything, name))
    assert sum(u.label == ("_silence_",) for u in few.train) == 2


def test_lite_takes_evenly_spaced_utterances(superb_data: dict[str, Path]) -> None:
    assert sample_evenly(list(range(10)), 4) == [0, 2, 5, 7]
    assert sample_evenly(list(range(3)), 4) == [0, 1, 2]
    (fold,) = make_task("sid", superb_data["sid"], lite=True).folds
    assert speakers(limit_speakers(fold, 1).test) == speakers(limit_speakers(fold, 1).train) == {"id10001"}
    assert all(len(part) <= most for part, most in zip((fold.train, fold.dev, fold.test), LITE_UTTERANCES, strict=True))


def test_lite_keeps_utterances_even_if_there_are_more_classes_than_utterances_to_keep() -> None:
    many = [Utterance(f"{label}-{number}", Path("x.wav"), (f"c{label}",)) for label in range(9) for number in range(2)]
    assert [u.name for u in sample_each_label(many, 4)] == ["0-0", "2-0", "4-0", "6-0"]
    assert [u.name for u in sample_each_label(many, 9)] == [f"{label}-0" for label in range(9)]
    assert sample_each_label(many, 18) == many


def test_the_lite_protocol_has_at_most_ten_looks_at_dev() -> None:
    recipe = find_entry("sid").recipe
    assert [recipe.lite(steps).evaluate_every for steps in (1, 10, 15, 1000)] == [1, 1, 2, 100]
    for steps in range(1, 200):
        assert -(-steps // recipe.lite(steps).evaluate_every) <= 10


@pytest.mark.parametrize("shares", [(0.7, 0.1, 0.2), (0.9, 0.05, 0.05), (0.2,) * 5])
def test_every_part_of_a_split_has_a_speaker_and_no_speaker_is_in_two(shares: tuple[float, ...]) -> None:
    for count in range(len(shares), 50):
        utterances = [Utterance(f"{n}-{i}", Path(), "", f"{n:02}") for n in range(count) for i in range(2)]
        parts = split_speakers(utterances, shares, seed=0, what="it")
        named = [speakers(part) for part in parts]
        assert all(named), count
        assert sum(map(len, named)) == len(set.union(*named)) == count
        assert sorted(u.name for part in parts for u in part) == sorted(u.name for u in utterances)
    assert [len(speakers(part)) for part in split_speakers(utterances[:80], (0.7, 0.1, 0.2), 0, "it")] == [28, 4, 8]


def test_utterances_without_a_speaker_are_in_no_part_of_a_split(capsys: pytest.CaptureFixture[str]) -> None:
    utterances = [Utterance(str(number), Path(), "", "abcd"[number % 4]) for number in range(8)]
    unknown = [Utterance(str(number), Path(), "") for number in range(8, 10)]
    parts = split_speakers([*unknown, *utterances], (0.5, 0.5), seed=0, what="it")
    assert parts == split_speakers(utterances, (0.5, 0.5), seed=0, what="it")
    assert "it: 2 utterances without a speaker left out" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["asr", "pr", "probe"])
def test_a_folder_of_speakers_is_read_once_its_own_name_is_the_subset(
    task: str, superb_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(superb_data["libri"] / "LibriSpeech" / "train-clean-100", tmp_path / "my-audio")
    for file in superb_data["libri"].glob("phones-*"):
        shutil.copy(file, tmp_path)

    def read(data: Path, **options: Any) -> int:
        if task == "probe":
            return len(read_labelled(data, **options))
        return len(make_task(task, data, lite=True, **options).folds[0].utterances)

    with pytest.raises(UserError, match=r"dev-clean; it holds speakers itself, so add --subset my-audio$"):
        read(folder)
    found = read(folder, subset="my-audio")
    assert found == len(list(folder.rglob("*.flac")))
    if task == "asr":
        monkeypatch.chdir(folder)
        assert read(Path(), subset="my-audio") == found


def test_lite_recognition_takes_any_subset(superb_data: dict[str, Path]) -> None:
    (fold,) = make_task("asr", superb_data["libri"], lite=True, subset="train-clean-100").folds
    assert fold.name == "LibriSpeech train-clean-100 split by speaker"
    assert {u.path.parts[-4] for u in fold.train + fold.dev + fold.test} == {"train-clean-100"}
    (fold,) = make_task("pr", superb_data["libri"], lite=True, subset="test-clean").folds
    assert {u.path.parts[-4] for u in fold.train} == {"test-clean"}
    with pytest.raises(UserError, match="--subset is for --lite"):
        make_task("asr", superb_data["libri"], subset="test-clean")
    with pytest.raises(UserError, match="libri has no folder dev-other"):
        make_task("asr", superb_data["libri"], lite=True, subset="dev-other")
    with pytest.raises(UserError, match=r"LibriSpeech/dev-other; it holds \S+-clean\S*: choose it with --subset$"):
        make_task("pr", superb_data["libri"] / "LibriSpeech", lite=True, subset="dev-other")


def test_lite_recognition_reads_a_labels_list_as_any_other_list(superb_data: dict[str, Path], tmp_path: Path) -> None:
    source = next((superb_data["libri"]).rglob("*.flac"))
    rows = []
    for speaker, split in (("ann", "train"), ("bob", "train"), ("cid", "test"), ("dée", "dev")):
        shutil.copy(source, tmp_path / f"{speaker}.flac")
        row = {"path": f"{speaker}.flac", "text": f"It's {speaker}, hello!", "speaker": speaker, "split": split}
        rows.append(row | {"offset": 0.25, "duration": 0.5})
    rows.append({"path": "ann.flac", "text": "...", "speaker": "ann"})  # nothing to spell
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("asr", tmp_path, lite=True)
    (fold,) = task.folds
    assert [speakers(part) for part in (fold.train, fold.dev, fold.test)] == [{"ann", "bob"}, {"dée"}, {"cid"}]
    assert [u.label for u in fold.utterances] == [f"it's {name} hello" for name in ("ann", "bob", "dée", "cid")]
    assert {(u.start, u.samples) for u in fold.utterances} == {(4_000, 8_000)}
    assert task.name == f"asr-{tmp_path.name}"
