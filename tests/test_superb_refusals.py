"""Corpora of the tasks that are incomplete or damaged: the reader names each problem in one clear line."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sjepa.errors import UserError
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.superb import TaskName, librispeech
from sjepa.evaluate.superb.corpora import quesst, voxceleb
from sjepa.evaluate.superb.corpora.fluent_commands import read_fluent_commands
from sjepa.evaluate.superb.corpora.libri2mix import read_table
from sjepa.evaluate.superb.corpora.snips import read_snips
from sjepa.evaluate.superb.decode import read_lexicon_words
from sjepa.evaluate.superb.records import (
    Fold,
)
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.superb.text import read_slot_names

pytest.importorskip("espeakng_loader")


@pytest.mark.parametrize(
    ("name", "corpus", "broken", "message"),
    [
        (
            "asr",
            "libri",
            "LibriSpeech/test-clean",
            "libri has no folder test-clean or LibriSpeech/test-clean; --lite needs only dev-clean",
        ),
        ("asr", "libri", "LibriSpeech/dev-clean/100/11/100-11-0001.flac", "labels without audio: .* names 100-11-0001"),
        (
            "asr",
            "libri",
            "LibriSpeech/dev-clean/100/11/100-11.trans.txt",
            "audio without labels: 2 of dev-clean, first",
        ),
        ("er", "er", "Session3", "er has no folder Session3"),
        ("er", "er", "Session1/sentences/wav/Ses01F_impro01/Ses01F_impro01_F000.wav", "labels without audio"),
        ("sf", "sf", "SNIPS/all.iob.snips.txt", r"there is no .*all\.iob\.snips\.txt"),
        ("sf", "sf", "SNIPS/slots.txt", "there is no list of slots"),
        ("sf", "sf", "SNIPS/valid", "SNIPS has no folder valid"),
        ("sf", "sf", "SNIPS/test/Brian-snips-test-0.wav", "labels without audio"),
        ("ks", "ks", "speech_commands_test_set_v0.01", r"ks has no folder speech_commands_test_set_v0\.01"),
        ("ic", "ic", "fluent_speech_commands_dataset/data/valid_data.csv", r"there is no .*valid_data\.csv"),
        ("ic", "ic", "fluent_speech_commands_dataset/wavs/speakers/amy/louder-0.wav", "labels without audio"),
        ("sid", "sid", "iden_split.txt", r"there is no .*iden_split\.txt"),
        ("sid", "sid", "dev/wav/id10002/video0/00001.wav", "labels without audio"),
        ("ravdess", "ravdess", "manifest.jsonl", r"there is no .*manifest\.jsonl"),
        ("coffee", "coffee", "audio/3.wav", "labels without audio"),
    ],
)
def test_what_is_missing_is_named_in_one_line(
    name: TaskName, corpus: str, broken: str, message: str, superb_copy: Callable[[str], Path]
) -> None:
    root = superb_copy(corpus)
    target = root / broken
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    with pytest.raises(UserError, match=message) as refusal:
        make_task(name, root)
    assert "\n" not in str(refusal.value)


LINES = {
    "ravdess": "manifest.jsonl",
    "coffee": "manifest.jsonl",
    "sid": "iden_split.txt",
    "ic": "fluent_speech_commands_dataset/data/valid_data.csv",
    "sf": "SNIPS/all.iob.snips.txt",
    "libri": "phones-dev-clean.jsonl",
}


@pytest.mark.parametrize(
    ("name", "corpus", "old", "new", "message"),
    [
        ("ravdess", "ravdess", '"emotion": "neutral"', '"emotion": 3', r"manifest\.jsonl: .* has the emotion 3, which"),
        ("ravdess", "ravdess", '"emotion": "neutral"', '"emotion": null', "has the emotion None, which is not a name"),
        ("coffee", "coffee", '"coffeeDrink": "mocha"', '"coffeeDrink": 2', r"has the slots {'coffeeDrink': 2.*, which"),
        ("coffee", "coffee", '"slots": {', '"slots": null, "other": {', "has the slots None, which are not names"),
        (
            "sid",
            "sid",
            "1 id10001/video0",
            "4 id10001/video0",
            r"iden_split\.txt line 1: '4 .*' is not 1, 2 or 3 and a",
        ),
        ("sid", "sid", "1 id10001/video0", "id10001/video0", "line 1: 'id10001/video0/00001.wav' is not 1, 2 or 3"),
        ("ic", "ic", ",action,", ",intent,", r"valid_data\.csv line 2: there is no action"),
        ("ic", "ic", ",increase,volume,kitchen", "", r"valid_data\.csv line 6: there is no action"),
        ("sf", "sf", "\tO O", "\tO", r"all\.iob\.snips\.txt line 1: needs one tag for each word"),
        ("pr", "libri", '{"name"', '"name"', r"phones-dev-clean\.jsonl line 1: not valid JSON"),
        (
            "pr",
            "libri",
            '"phones"',
            '"fones"',
            r"phones-dev-clean\.jsonl line 1: needs a name and a list of phones",
        ),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named_in_one_line(
    name: TaskName, corpus: str, old: str, new: str, message: str, superb_copy: Callable[[str], Path]
) -> None:
    root = superb_copy(corpus)
    file = root / LINES[corpus]
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=message) as refusal:
        make_task(name, root, lite=True)
    assert "\n" not in str(refusal.value)


READERS: dict[str, Callable[[Path], object]] = {
    "lexicon.txt": lambda root: librispeech.read_lexicons([root / "lexicon.txt"]),
    "words.txt": lambda root: list(read_lexicon_words(root / "words.txt")),
    "slots.txt": lambda root: read_slot_names(root / "slots.txt"),
    "all.iob.snips.txt": read_snips,
    "scoring/documents.lst": lambda root: quesst.read_list(root, "documents.lst"),
    "scoring/dev.rttm": lambda root: quesst.read_truth(root / "scoring"),
    "iden_split.txt": voxceleb.read_voxceleb,
    voxceleb.TRIALS[0]: voxceleb.read_trials,
    "utt2spk": lambda root: read_table(root / "utt2spk", 2),
    "data/train_data.csv": read_fluent_commands,
}


@pytest.mark.parametrize("name", READERS)
def test_a_text_file_in_another_encoding_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / "wav").mkdir()  # of VoxCeleb
    (tmp_path / name).write_bytes("José café\n".encode("latin-1"))
    for other in ("dev.tlist.xml", "dev.ecf.xml") if name.endswith(".rttm") else ():
        (tmp_path / "scoring" / other).write_text("<a/>")
    with pytest.raises(UserError, match=f"{re.escape(name)} is not UTF-8 text"):
        READERS[name](tmp_path)


def test_labels_in_another_encoding_are_refused_by_line(tmp_path: Path) -> None:
    lines = ['{"path": "a.wav"}\n', '{"path": "a.wav", "text": "café"}\n']
    (tmp_path / "labels.jsonl").write_bytes("".join(lines).encode("latin-1"))
    with pytest.raises(UserError, match=r"labels\.jsonl line 2: not UTF-8 text"):
        read_labelled(tmp_path, phones=False)


def test_a_label_that_cannot_be_written_is_refused_before_training(superb_copy: Callable[[str], Path]) -> None:
    root = superb_copy("libri")
    transcript = root / "LibriSpeech/test-clean/102/12/102-12.trans.txt"
    transcript.write_text("102-12-0000 CAFÉ\n")
    with pytest.raises(UserError, match="'É' in the label 'CAFÉ' is not one of the task's 32 symbols"):
        make_task("asr", root)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("ravdess", "audio/amy"),
        ("coffee", "audio"),
        ("ic", "fluent_speech_commands_dataset/wavs"),
        ("sid", "dev/wav/id10002/video0"),
    ],
)
def test_audio_without_labels_is_left_out_and_named(
    name: TaskName,
    folder: str,
    superb_data: dict[str, Path],
    superb_copy: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_task(name, superb_data[name])
    assert "without labels" not in capsys.readouterr().out
    root = superb_copy(name)
    source = next(root.rglob("*.wav"))
    for number in range(2):
        shutil.copy(source, root / folder / f"new{number}.wav")
    make_task(name, root)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "without labels" in line]
    assert line.startswith("audio without labels in ")
    assert "2 left out, first " in line
    assert line.endswith("new0.wav")


def test_a_corpus_with_one_speaker_cannot_be_split_by_speaker(superb_copy: Callable[[str], Path]) -> None:
    root = superb_copy("libri")
    for speaker in ("101", "102"):
        shutil.rmtree(root / "LibriSpeech" / "dev-clean" / speaker)
    with pytest.raises(UserError, match=r"dev-clean has 1 speaker; a split by speaker needs at least 3"):
        make_task("asr", root, lite=True)


def test_audio_without_labels_in_snips_is_left_out_and_named(
    superb_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = superb_copy("sf")
    shutil.copy(root / "SNIPS/test/Brian-snips-test-0.wav", root / "SNIPS/test/Brian-snips-test-77.wav")
    (fold,) = make_task("sf", root).folds
    assert len(fold.test) == 3
    assert "1 left out, first Brian-snips-test-77" in capsys.readouterr().out


def test_one_class_leaves_nothing_to_learn_and_an_empty_part_is_refused(superb_copy: Callable[[str], Path]) -> None:
    root = superb_copy("ravdess")
    rows = [json.loads(line) | {"emotion": "sad"} for line in (root / "manifest.jsonl").read_text().splitlines()]
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="a slot with a single class, so there is nothing to learn"):
        make_task("ravdess", root)
    with pytest.raises(UserError, match="x: the dev part is empty"):
        Fold("x", [None], [], [None])  # type: ignore[list-item]
    with pytest.raises(UserError, match="there is no folder nowhere"):
        make_task("asr", Path("nowhere"))
