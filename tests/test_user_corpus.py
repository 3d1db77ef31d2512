"""Tasks on a user's corpus: labels, splits, a part of the training speech, and corpora that are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from test_layouts import as_dataset, kaldi

from sjepa.audio.io import BadAudioError
from sjepa.cli import dispatch
from sjepa.data.build import build_index
from sjepa.data.index import open_index, read_labels
from sjepa.errors import UserError
from sjepa.evaluate.superb.alphabet import Alphabet, spell
from sjepa.evaluate.superb.metrics import character_error_rate
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import SHARES, Fold, Utterance, measure_lengths
from sjepa.evaluate.superb.tasks import asr, classify, make_task
from sjepa.evaluate.superb.tasks.tag import find_slot_names, remove_marks
from sjepa.evaluate.superb.text import SlotCharacters
from sjepa.evaluate.superb.user_corpus import draw_parts, limit_training, make_utterance, read_items
from sjepa.evaluate.table import build_sections
from sjepa.evaluate.upstream import load_upstream

pytest.importorskip("pyarrow")
WORDS = {"ä": 300, "bé": 900}  # a word is a tone


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def say_words(words: list[str], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    t = np.arange(8_000) / 16_000
    tones = [0.1 * np.sin(2 * np.pi * WORDS[word] * t) for word in words]
    return np.concatenate(tones) + 0.001 * generator.standard_normal(8_000 * len(words))


def spoken(root: Path, splits: tuple[str, ...] = ("train", "test"), speakers: int = 3, each: int = 4) -> Path:
    """Kaldi folders in which every speaker says some words; all utterances of a speaker lie in one recording."""
    for place, split in enumerate(splits):
        lines: dict[str, list[str]] = {name: [] for name in ("wav.scp", "segments", "text", "utt2spk", "utt2mood")}
        for speaker in range(speakers):
            name, at, pieces = f"{split}{speaker}", 0, []
            for number in range(each):
                words = [list(WORDS)[(number // 2 + speaker + k) % 2] for k in range(1 + number % 2)]
                pieces.append(say_words(words, 100 * place + 10 * speaker + number))
                utterance = f"{name}-{number}"
                lines["segments"].append(f"{utterance} {name} {at / 16_000} {(at + len(pieces[-1])) / 16_000}")
                lines["text"].append(f"{utterance} {' '.join(words).upper()}!")
                lines["utt2spk"].append(f"{utterance} {name}")
                lines["utt2mood"].append(f"{utterance} {'calm' if len(words) == 1 else 'glad'}")
                at += len(pieces[-1])
            (root / "audio").mkdir(parents=True, exist_ok=True)
            soundfile.write(root / "audio" / f"{name}.wav", np.concatenate(pieces), 16_000)
            lines["wav.scp"].append(f"{name} audio/{name}.wav")
        kaldi(root / split, **{name: "\n".join(rows) + "\n" for name, rows in lines.items()})
    return root


def test_text_is_spelled_in_any_script() -> None:
    assert spell("  L’Été —  Ça va? ÄÖ-3") == "l'été ça va äö 3"
    assert spell("你好, 世界") == "你好 世界"
    alphabet = Alphabet.from_texts(["ab", "c a"])
    assert alphabet.symbols[5:] == ("a", "b", "c")
    assert alphabet.transcribe(alphabet.encode("ab c")) == "ab c "
    unseen = alphabet.transcribe(alphabet.encode("az"))
    assert unseen == "a\ufffd "
    assert character_error_rate([alphabet.transcribe(alphabet.encode("a"))], [unseen]) > 0
    tagged = SlotCharacters(("stadt",), ("i", "n", "ö"))
    assert tagged.transcribe(tagged.encode("in B-stadt öö E-stadt")) == "in B-stadt öö E-stadt"


def test_a_kaldi_corpus_keeps_its_splits_and_takes_dev_from_training_speakers(tmp_path: Path) -> None:
    task = make_task("asr", spoken(tmp_path / "tones"), lite=True, steps=1)
    (fold,) = task.folds
    assert (task.name, fold.name) == ("asr-tones", "tones")
    assert {u.speaker for u in fold.test} == {"test0", "test1", "test2"}
    assert len({u.speaker for u in fold.dev}) == 1
    assert not {u.speaker for u in fold.dev} & {u.speaker for u in fold.train}
    assert {u.label for u in fold.train} == {"ä", "bé", "ä bé", "bé ä"}
    segment = next(u for u in fold.test if u.name == "test0-1")
    whole, _ = soundfile.read(tmp_path / "tones" / "audio" / "test0.wav", dtype="float32")
    assert np.array_equal(segment.read(), whole[8_000:24_000])


def test_asr_learns_a_corpus_of_its_own_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asr, "LITE_WIDTH", 64)
    data = spoken(tmp_path / "tones", ("train", "dev", "test"))
    command = ["superb", "asr", "--encoder", "mfcc", "--data", str(data), "--lite", "--steps", "45", "--lr", "5e-3"]
    dispatch([*command, "--out", str(tmp_path / "out")])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["task"] == "asr-tones"
    assert results["section"] == "other"
    assert results["metrics"]["cer"] < 90  # a head that writes nothing has 100
    assert results["data"][0]["test_utterances"] == 12
    assert "asr-tones-lite on mfcc" in capsys.readouterr().out
    (section,) = build_sections([results])
    assert not any(row.reported for row in section.rows)


def test_an_index_serves_as_the_corpus_does(tmp_path: Path) -> None:
    data = spoken(tmp_path / "tones")
    build_index([str(data)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    plain, indexed = (make_task("asr", place, lite=True) for place in (data, tmp_path / "index"))
    for one, other in zip(plain.folds[0].utterances, indexed.folds[0].utterances, strict=True):
        assert (one.name, one.label) == (other.name, other.label)
        assert np.array_equal(one.read(), other.read())


def test_classes_are_columns_of_any_corpus(tmp_path: Path) -> None:
    data = spoken(tmp_path / "tones")
    task = make_task("classify", data, lite=True, steps=40, columns=("mood",))
    results = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "out").run([1e-2])
    assert results["metrics"]["accuracy"] > results["chance"]["accuracy"] + 20
    both = make_task("classify", data, lite=True, columns=("mood", "text"))
    assert len(both.folds[0].train[0].label) == 2
    speakers = make_task("classify", data / "train", lite=True, columns=("speaker",))
    assert speakers.folds[0].name == "train split by utterance"
    with pytest.raises(UserError, match="a value in the column age; its columns are mood, speaker, text; choose"):
        make_task("classify", data, columns=("age",))
    with pytest.raises(UserError, match="no class of speaker is in both the training and the test part"):
        make_task("classify", data, lite=True, columns=("speaker",))


def test_each_label_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["superb", "classify", "--encoder", "logmel", "--data", str(spoken(tmp_path / "tones")), "--lite"]
    for labels in (["--label", "mood"], ["--label", "text"], ["--label", "mood", "--label", "text"]):
        dispatch([*command, "--steps", "1", "--device", "cpu", *labels])
    folders = {path.parent.name for path in tmp_path.glob("runs/superb/*/*/results.json")}
    assert folders == {"classify-tones-mood-lite", "classify-tones-text-lite", "classify-tones-mood+text-lite"}
    assert classify.ENTRY.rename_for_corpus(Path("a.csv"), ["who / when"]).name == "classify-a-who_when"


def test_classes_inside_a_dataset_are_read_from_its_bytes(tmp_path: Path) -> None:
    task = make_task("classify", as_dataset(tmp_path, "abcfg"), lite=True, steps=2, columns=("intent",))
    (fold,) = task.folds
    assert {u.label for u in fold.train} == {("no",), ("yes",)}
    assert [u.label for u in fold.test] == [("no",), ("yes",)]
    results = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "out").run([1e-2])
    assert 0 <= results["metrics"]["accuracy"] <= 100


def test_tags_are_recognised_with_their_words(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(12):
        words = ["ä", "bé"] if number % 2 else ["bé", "ä"]
        soundfile.write(tmp_path / f"{number}.wav", say_words(words, number), 16_000)
        tags = ["O", "B-ort"] if number % 2 else ["B-ort", "O"]
        rows.append({"path": f"{number}.wav", "text": " ".join(words), "spk": f"s{number % 4}", "tags": tags})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("tag", tmp_path, lite=True, steps=1)
    assert task.folds[0].train[0].label in ("Ä B-ort BÉ E-ort", "B-ort BÉ E-ort Ä")
    results = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "out").run([1e-3])
    assert set(results["metrics"]) == {"slot_type_f1", "slot_value_cer"}
    rows[3]["tags"] = ["O"]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="3 has 2 words and 1 tags in tags: each word needs one"):
        make_task("tag", tmp_path, lite=True)


def test_hyphens_of_words_are_no_marks_of_slots() -> None:
    labels = ["B-ort ONE-WAY E-ort", "AN E-MAIL ABOUT A B-MOVIE"]
    said = [Utterance(label, Path(), label) for label in labels]
    slots = find_slot_names(Fold("it", said, said, said))
    assert slots == ("ort",)
    assert [remove_marks(label, slots) for label in labels] == ["ONE-WAY", "AN E-MAIL ABOUT A B-MOVIE"]


def test_a_part_of_the_training_speech_is_drawn_by_the_seed(tmp_path: Path) -> None:
    task = make_task("asr", spoken(tmp_path / "tones"), lite=True, steps=1)
    few, again, other = (limit_training(task, 2.0 / 3600, seed) for seed in (0, 0, 1))
    names = [[u.name for u in part.folds[0].train] for part in (few, again, other)]
    assert names[0] == names[1] != names[2]
    seconds = sum(len(u.read()) for u in few.folds[0].train) / 16_000
    assert 2.0 <= seconds < 3.0
    assert few.folds[0].test == task.folds[0].test
    assert few.folds[0].dev == task.folds[0].dev
    assert few.name == "asr-tones-0.0333333min"
    assert limit_training(task, 1 / 3600, 0).name != few.name
    with pytest.raises(UserError, match=r"has 0\.00 hours of training speech, less than 5h"):
        limit_training(task, 5, 0)


def test_lengths_come_from_one_header_per_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fold,) = make_task("asr", spoken(tmp_path / "tones"), lite=True, steps=1).folds
    opened: list[str] = []
    header = Utterance.header
    monkeypatch.setattr(Utterance, "header", lambda u: opened.append(u.recording) or header(u))
    assert measure_lengths(fold.utterances).tolist() == [len(u.read()) for u in fold.utterances]
    assert len(opened) == len(set(opened)) == 6 < len(fold.utterances)


def test_results_with_fewer_transcripts_have_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["superb", "asr", "--encoder", "logmel", "--data", str(spoken(tmp_path / "tones")), "--lite"]
    for options in ([], ["--minutes", "0.05"]):
        dispatch([*command, "--steps", "1", "--device", "cpu", *options])
    tasks = {path.parent.name: json.loads(path.read_text())["task"] for path in tmp_path.glob("runs/superb/*/*/*.json")}
    assert tasks == {"asr-tones-lite": "asr-tones", "asr-tones-0.05min-lite": "asr-tones-0.05min"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["asr", "--hours", "1", "--minutes", "5"], "--hours or --minutes, not both"),
        (["qbe", "--hours", "1"], "qbe has no training part: leave --hours and --minutes out"),
        (["qbe", "--minutes", "5", "--lite"], "qbe has no training part: leave --hours and --minutes out"),
        (["asr", "--minutes", "0"], "--minutes 0: it should be greater than 0"),
        (["asr", "--label", "mood"], "--label is for classify and tag; asr has its own labels"),
        (["tag", "--label", "a", "--label", "b"], "--label: tag takes one column of tags"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["superb", *options, "--encoder", "logmel", "--data", str(tmp_path)])


def test_splits_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has the splits test, and none for train: name them train, dev"):
        make_task("asr", spoken(tmp_path / "one", ("test",)), lite=True)
    with pytest.raises(UserError, match=r"has 2 speakers and no splits: a split by speaker needs at least 3"):
        make_task("asr", spoken(tmp_path / "few", ("train",), speakers=2), lite=True)
    by_speaker = make_task("asr", spoken(tmp_path / "all", ("train",), speakers=4), lite=True)
    assert by_speaker.folds[0].name == "all split by speaker"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "wav.scp").write_text("a cat a.sph |\n")
    with pytest.raises(UserError, match=r"has no utterances: .*output of a command"):
        make_task("asr", tmp_path / "empty", lite=True)


def write_calls(folder: Path, header: str, rows: list[str]) -> Path:
    """A CSV file of short recordings: a path, and further columns."""
    folder.mkdir()
    for number in range(len(rows)):
        soundfile.write(folder / f"{number}.wav", say_words(["ä", "bé"][: 1 + number % 2], number), 16_000)
    lines = [f"path{header}", *(f"{number}.wav{row}" for number, row in enumerate(rows))]
    (folder / "calls.csv").write_text("\n".join(lines) + "\n")
    return folder / "calls.csv"


def test_a_corpus_without_speakers_is_split_by_utterance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_calls(tmp_path / "a", ",intent", [",pay", ",ask"] * 10)
    command = ["superb", "classify", "--encoder", "logmel", "--data", str(data), "--label", "intent", "--lite"]
    dispatch([*command, "--steps", "1", "--device", "cpu", "--out", str(tmp_path / "out")])
    assert "has no speakers and no splits: split by utterance" in capsys.readouterr().out
    (about,) = json.loads((tmp_path / "out" / "results.json").read_text())["data"]
    sizes = [about[f"{part}_utterances"] for part in ("train", "dev", "test")]
    assert (about["fold"], sizes) == ("calls split by utterance", [14, 2, 4])
    few = write_calls(tmp_path / "b", ",intent,speaker", [",pay,one", ",ask,two", ",pay,", ",ask,"])
    with pytest.raises(UserError, match=r"has 2 speakers and no splits"):
        make_task("classify", few, columns=("intent",))


@pytest.mark.parametrize("sizes", [SHARES, (0.9, 0.1)])
def test_no_part_of_a_split_by_utterance_is_empty(sizes: tuple[float, ...]) -> None:
    for count in range(3, 61):
        utterances = [Utterance(str(number), Path(), "") for number in range(count)]
        parts = draw_parts(utterances, sizes, "it", by_speaker=False)
        assert sorted(u.name for part in parts for u in part) == sorted(u.name for u in utterances)
        assert all(1 <= len(part) <= 1 + max(1, size * count) for part, size in zip(parts, sizes, strict=True)), count


def test_a_test_part_with_one_class_is_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, last in (("one", "pay"), ("both", "ask")):
        rows = [",pay,train", ",ask,train", ",pay,train", ",ask,train", ",pay,test", f",{last},test"]
        data = write_calls(tmp_path / name, ",intent,split", rows)
        make_task("classify", data, lite=True, columns=("intent",))
        warned = "Warning: calls: all test utterances have the class pay" in capsys.readouterr().out
        assert warned == (name == "one")


def test_missing_columns_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_calls(tmp_path / "a", ",intent", [",pay", ",ask"])
    wanted = "no utterance has a value in the column label; its columns are intent; choose a column .* with --label"
    with pytest.raises(UserError, match=wanted):
        make_task("classify", data)
    with pytest.raises(UserError, match=r"no utterance has text; its columns are intent$"):
        make_task("asr", data)
    with pytest.raises(UserError, match=r"no utterance has text; it has no columns of labels, only audio$"):
        make_task("asr", write_calls(tmp_path / "b", "", ["", ""]))
    some = write_calls(tmp_path / "c", ",intent", [",pay", ",ask"] * 5 + [","])
    make_task("classify", some, columns=("intent",))
    assert "1 of 11 utterances lack a value in the column intent, first 10" in capsys.readouterr().out


@pytest.mark.parametrize("lite", [True, False])
def test_a_folder_of_audio_without_transcripts_is_refused(lite: bool, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", say_words(["ä"], 0), 16_000)
    with pytest.raises(
        UserError, match=r"no transcripts found for .*: give LibriSpeech .* with a text column, or Kaldi"
    ):
        make_task("asr", tmp_path, lite=lite)


def test_utterances_without_a_split_are_reported_if_others_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "mine.jsonl"
    splits = ["train", "train", "train", "test", "", ""]
    rows = []
    for number, split in enumerate(splits):
        soundfile.write(tmp_path / f"{number}.wav", say_words(["ä"], number), 16_000)
        rows.append({"path": f"{number}.wav", "text": "ä", "speaker": f"s{number}", "split": split})
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (fold,) = make_task("asr", data, lite=True).folds
    assert len(fold.utterances) == 4
    assert "2 of 6 utterances have no split and are left out, first 4" in capsys.readouterr().out
    rows = [row | {"split": "test" if row["split"] else ""} for row in rows]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="has the splits test, and none for train"):
        make_task("asr", data, lite=True)


def test_items_of_a_labels_list_have_its_columns(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", say_words(["ä"], 0), 16_000)
    (tmp_path / "labels.jsonl").write_text('{"path": "a.wav", "speaker": "s", "age": 30}\n')
    (item,) = read_items(tmp_path)
    assert (item.speaker, json.loads(item.labels)) == ("s", {"age": 30})


@pytest.mark.parametrize("rate", [16_000, 22_050])
def test_an_evaluation_and_an_index_accept_the_same_durations(rate: int, tmp_path: Path) -> None:
    """Lists round durations: an utterance may end up to 0.1 s after its recording."""
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(size=2 * rate) / 10, rate)
    rows = [{"path": "a.wav", "id": f"{end}", "offset": 1.0, "duration": end - 1.0} for end in (1.9, 2.05, 2.1, 2.15)]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index([str(tmp_path / "list.jsonl")], tmp_path / "index", layout="auto", max_seconds=15, cut_transcribed=True)
    names, lengths = read_labels(str(tmp_path / "index"))["id"].to_pylist(), open_index(str(tmp_path / "index")).length
    indexed = dict(zip(names, lengths.tolist(), strict=True))
    assert indexed == {"1.9": 14_400, "2.05": 16_000, "2.1": 16_000}
    utterances = [make_utterance(item, "") for item in read_items(tmp_path / "list.jsonl")]
    for utterance in utterances[:3]:
        assert len(utterance.read()) == utterance.length(utterance.header().samples) == indexed[utterance.name]
    for read in (utterances[3].read, lambda: utterances[3].length(32_000)):
        with pytest.raises(
            BadAudioError, match=r"a\.wav: .* ends at 2\.15 s, but the recording ends at 2\.00 s; repair"
        ):
            read()
