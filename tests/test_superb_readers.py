"""Readers of the corpora: what they find in the true layouts, and what they refuse in one clear line."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import superb_corpora as corpora
import torch

from sjepa.data.synthetic import VOICES
from sjepa.errors import UserError
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.superb import TaskName, librispeech
from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.corpora import quesst, voxceleb
from sjepa.evaluate.superb.corpora.fluent_commands import read_fluent_commands
from sjepa.evaluate.superb.corpora.libri2mix import read_table
from sjepa.evaluate.superb.corpora.snips import read_snips
from sjepa.evaluate.superb.decode import read_lexicon_words
from sjepa.evaluate.superb.records import (
    LITE_UTTERANCES,
    Fold,
    Label,
    Utterance,
    sample_each_label,
    sample_evenly,
    split_speakers,
)
from sjepa.evaluate.superb.sequences import Batching, SequenceTask
from sjepa.evaluate.superb.tasks import find_entry, make_task
from sjepa.evaluate.superb.tasks.sid import limit_speakers
from sjepa.evaluate.superb.text import Characters, read_slot_names

pytest.importorskip("espeakng_loader")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("made")
    subsets = {"train-clean-100": 4, "dev-clean": 4, "test-clean": 2}
    return {
        "libri": corpora.librispeech(root / "libri", subsets, VOICES[:3]),
        "er": corpora.iemocap(root / "er", each=1),
        "sf": corpora.snips(root / "sf", each=3),
        "ks": corpora.speech_commands(root / "ks", words=("yes",)),
        "ic": corpora.fluent_commands(root / "ic"),
        "sid": corpora.voxceleb(root / "sid", speakers=2),
        "ravdess": corpora.ravdess(root / "ravdess", actors=5),
        "coffee": corpora.coffee(root / "coffee", orders=10),
    }


@pytest.fixture
def copy(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: shutil.copytree(made[name], tmp_path / name)


def speakers(part: list) -> set[str]:
    return {u.speaker for u in part}


def test_librispeech_parts_and_labels(made: dict[str, Path]) -> None:
    task = make_task("asr", made["libri"])
    assert isinstance(task, SequenceTask)
    (fold,) = task.folds
    assert (len(fold.train), len(fold.dev), len(fold.test)) == (12, 12, 6)
    assert fold.train[0].name == "100-11-0000"
    assert fold.train[0].path.read_bytes()[:4] == b"fLaC"
    assert set(str(fold.train[0].label).split()) <= {word.upper() for word in corpora.NUMBERS}
    assert (task.recurrent, task.recipe.steps, task.recipe.batch * task.recipe.accumulate) == (1024, 200_000, 16)
    assert librispeech.read_speaker_sexes(made["libri"]) == {"100": "F", "101": "M", "102": "F"}


def test_lite_recognition_is_dev_clean_split_by_speaker(made: dict[str, Path]) -> None:
    (fold,) = make_task("asr", made["libri"] / "LibriSpeech", lite=True).folds
    parts = [speakers(part) for part in (fold.train, fold.dev, fold.test)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == 3
    assert sum(map(len, (fold.train, fold.dev, fold.test))) == 12


def test_phonemes_come_from_a_lexicon_or_from_alignments(made: dict[str, Path], tmp_path: Path) -> None:
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("ONE\tW AH1 N\nONE\tHH W AH1 N\nTWO\tT UW1\nTHREE\tTH R IY1\nFOUR\tF AO1 R\nFIVE\tF AY1 V\n")
    with pytest.raises(UserError, match=r"lexicon\.txt lacks 1 words of the transcripts, first SIX"):
        make_task("pr", made["libri"], lexicons=[lexicon])
    lexicon.write_text(lexicon.read_text() + "\nSIX\tS IH1 K S\n\n")  # empty lines say nothing
    task = make_task("pr", made["libri"], lexicons=[lexicon])
    assert isinstance(task, SequenceTask)
    assert len(task.symbols.symbols) == 74
    assert set(str(task.folds[0].train[0].label).split()) <= set(task.symbols.symbols)
    first, second = tmp_path / "200k.txt", tmp_path / "allothers.txt"
    first.write_text("".join(lexicon.read_text().splitlines(keepends=True)[:4]))
    second.write_text("ONE\tOW1\n" + "".join(lexicon.read_text().splitlines(keepends=True)[4:]))
    merged = make_task("pr", made["libri"], lexicons=[first, second])
    assert merged.folds == task.folds  # of a word in both, the first lexicon's pronunciation
    with pytest.raises(UserError, match=r"200k\.txt lacks \d words"):
        make_task("pr", made["libri"], lexicons=[first])
    with pytest.raises(UserError, match="needs pronunciations: --lexicon"):
        make_task("pr", made["libri"])
    assert librispeech.merge_phones(["SIL", "A", "A", "SIL", "A", "B", "B", "SIL"]) == "A A B"


def test_iemocap_holds_out_a_session_a_fold(made: dict[str, Path]) -> None:
    folds = make_task("er", made["er"]).folds
    assert [fold.name for fold in folds] == [f"Session{n}" for n in range(1, 6)]
    for fold in folds:
        assert {u.name[:5] for u in fold.test} == {f"Ses0{fold.name[-1]}"}
        assert not {u.name for u in fold.test} & {u.name for u in fold.train + fold.dev}
        assert {u.label for u in fold.train} == {("neutral",), ("happy",), ("angry",), ("sad",)}
        assert len(fold.dev) == 32 - int(0.8 * 32)


def test_snips_is_split_by_its_speakers_and_marks_its_slots(made: dict[str, Path]) -> None:
    (fold,) = make_task("sf", made["sf"]).folds
    assert speakers(fold.train) == {"Ivy", "Joanna", "Joey"}
    assert speakers(fold.dev) == {"Amy"}
    assert speakers(fold.test) == {"Brian"}
    labels = {str(u.label) for u in fold.train}
    assert labels <= {
        "PLAY B-artist ABBA E-artist",
        "PLAY B-artist SADE E-artist",
        "IN B-city ROME E-city",
        "IN B-city PARIS E-city",
    }


def test_speech_commands_are_split_by_hash_and_silence_is_cropped(made: dict[str, Path]) -> None:
    (fold,) = make_task("ks", made["ks"]).folds
    assert {corpora.part_of(u.speaker) for u in fold.train if u.label != ("_silence_",)} == {"train"}
    assert {corpora.part_of(u.speaker) for u in fold.dev if u.label != ("_silence_",)} == {"dev"}
    assert {u.label[0] for u in fold.test} == {"yes", "_unknown_", "_silence_"}
    assert all(u.crop == 16_000 for u in fold.train if u.label == ("_silence_",))
    assert all(u.crop == 0 for u in fold.test)


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


def test_fluent_commands_have_three_slots_and_voxceleb_its_own_split(made: dict[str, Path]) -> None:
    (fold,) = make_task("ic", made["ic"]).folds
    assert ("activate", "lights", "none") in {u.label for u in fold.train}
    assert not speakers(fold.train) & speakers(fold.test)
    (fold,) = make_task("sid", made["sid"]).folds
    assert (len(fold.train), len(fold.dev), len(fold.test)) == (10, 2, 2)
    assert speakers(fold.train) == speakers(fold.test) == {"id10001", "id10002"}


def test_ravdess_folds_share_no_actor_and_coffee_slots_may_be_empty(made: dict[str, Path]) -> None:
    for fold in make_task("ravdess", made["ravdess"]).folds:
        parts = [speakers(part) for part in (fold.train, fold.dev, fold.test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 5
    (fold,) = make_task("coffee", made["coffee"]).folds
    assert (len(fold.train), len(fold.dev), len(fold.test)) == (7, 1, 2)
    assert any(u.label[1] == "" for u in fold.train)


def test_a_manifest_is_read_as_an_index_reads_it(copy: Callable[[str], Path], made: dict[str, Path]) -> None:
    root = copy("ravdess")
    rows = [json.loads(line) for line in (root / "manifest.jsonl").read_text().splitlines()]

    def write(*changes: dict[str, object]) -> None:
        lines = [row | change for row, change in zip(rows, [*changes, *[{}] * len(rows)], strict=False)]
        (root / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))

    usual = make_task("ravdess", made["ravdess"]).folds
    rows = [
        {"utt_id": r["id"], "audio_filepath": str(root / r["path"]), "speaker": r["spk"], "emotion": r["emotion"]}
        for r in rows
    ]
    write()
    for fold, expected in zip(make_task("ravdess", root).folds, usual, strict=True):
        assert [(u.name, u.label, u.speaker) for u in fold.test] == [
            (u.name, u.label, u.speaker) for u in expected.test
        ]
    write({"audio_filepath": None})
    with pytest.raises(UserError, match=r"manifest\.jsonl line 1: no audio is named"):
        make_task("ravdess", root)
    write({}, {"offset": 1.5})
    with pytest.raises(UserError, match=f"{rows[1]['utt_id']} is not a separate file"):
        make_task("ravdess", root)
    write()
    with pytest.raises(UserError, match="has no slots"):
        make_task("coffee", root)


def test_lite_takes_evenly_spaced_utterances(made: dict[str, Path]) -> None:
    assert sample_evenly(list(range(10)), 4) == [0, 2, 5, 7]
    assert sample_evenly(list(range(3)), 4) == [0, 1, 2]
    (fold,) = make_task("sid", made["sid"], lite=True).folds
    assert speakers(limit_speakers(fold, 1).test) == speakers(limit_speakers(fold, 1).train) == {"id10001"}
    assert all(len(part) <= most for part, most in zip((fold.train, fold.dev, fold.test), LITE_UTTERANCES, strict=True))


def test_lite_keeps_utterances_even_if_there_are_more_classes_than_utterances_to_keep() -> None:
    many = [Utterance(f"{label}-{number}", Path("x.wav"), (f"c{label}",)) for label in range(9) for number in range(2)]
    assert [u.name for u in sample_each_label(many, 4)] == ["0-0", "2-0", "4-0", "6-0"]
    assert [u.name for u in sample_each_label(many, 9)] == [f"{label}-0" for label in range(9)]
    assert sample_each_label(many, 18) == many


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
    name: TaskName, corpus: str, broken: str, message: str, copy: Callable[[str], Path]
) -> None:
    root = copy(corpus)
    target = root / broken
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    with pytest.raises(UserError, match=message) as refusal:
        make_task(name, root)
    assert "\n" not in str(refusal.value)


def test_a_part_of_librispeech_is_read_if_no_text_is_needed(copy: Callable[[str], Path]) -> None:
    """As by probes: transcripts of audio that was left out do not matter."""
    root = copy("libri")
    whole = read_labelled(root, phones=False)
    whole[0].utterance.path.unlink()
    part = read_labelled(root, phones=False)
    assert [item.utterance.name for item in part] == [item.utterance.name for item in whole[1:]]
    assert part[0].utterance.label == whole[1].utterance.label


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
    name: TaskName, corpus: str, old: str, new: str, message: str, copy: Callable[[str], Path]
) -> None:
    root = copy(corpus)
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


def test_a_byte_order_mark_is_not_part_of_the_first_word(tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("ja Y AA\n", encoding="utf-8-sig")
    assert librispeech.read_lexicons([tmp_path / "lexicon.txt"]) == {"ja": "Y AA"}


def test_phones_are_read_from_files_with_blank_lines_and_from_gzip(tmp_path: Path) -> None:
    line = json.dumps({"name": "1-1-0000", "phones": ["SIL", "G"]})
    expected = {"1-1-0000": ["SIL", "G"]}
    (tmp_path / "phones-dev-clean.jsonl").write_text(f"{line}\n\n")
    (tmp_path / "phones-dev-clean.jsonl.bak").write_text("an older version")
    assert librispeech.read_aligned_phones(tmp_path) == expected
    (tmp_path / "phones-dev-clean.jsonl").write_text(f"\n{line}\n[]\n")
    with pytest.raises(UserError, match=r"phones-dev-clean\.jsonl line 3: not a JSON object"):
        librispeech.read_aligned_phones(tmp_path)
    (tmp_path / "phones-dev-clean.jsonl").unlink()
    packed = tmp_path / "phones-dev-clean.jsonl.gz"
    packed.write_bytes(gzip.compress(f"{line}\n".encode()))
    assert librispeech.read_aligned_phones(tmp_path) == expected
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(UserError, match=r"phones-dev-clean\.jsonl\.gz cannot be decompressed"):
        librispeech.read_aligned_phones(tmp_path)


def test_labels_in_another_encoding_are_refused_by_line(tmp_path: Path) -> None:
    lines = ['{"path": "a.wav"}\n', '{"path": "a.wav", "text": "café"}\n']
    (tmp_path / "labels.jsonl").write_bytes("".join(lines).encode("latin-1"))
    with pytest.raises(UserError, match=r"labels\.jsonl line 2: not UTF-8 text"):
        read_labelled(tmp_path, phones=False)


def test_a_label_that_cannot_be_written_is_refused_before_training(copy: Callable[[str], Path]) -> None:
    root = copy("libri")
    transcript = root / "LibriSpeech/test-clean/102/12/102-12.trans.txt"
    transcript.write_text("102-12-0000 CAFÉ\n")
    with pytest.raises(UserError, match="'É' in the label 'CAFÉ' is not one of the task's 32 symbols"):
        make_task("asr", root)


def test_labels_are_encoded_once(made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("asr", made["libri"])
    labels = [u.label for u in task.folds[0].train[:2]]
    monkeypatch.setattr(Characters, "encode", None)
    assert torch.isfinite(task.loss(torch.zeros(2, 50, 32), torch.tensor([50, 40]), labels))
    assert task.score(labels, labels)["wer"] == 0


def test_the_lite_protocol_has_at_most_ten_looks_at_dev() -> None:
    recipe = find_entry("sid").recipe
    assert [recipe.lite(steps).evaluate_every for steps in (1, 10, 15, 1000)] == [1, 1, 2, 100]
    for steps in range(1, 200):
        assert -(-steps // recipe.lite(steps).evaluate_every) <= 10


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
    name: TaskName, folder: str, made: dict[str, Path], copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    make_task(name, made[name])
    assert "without labels" not in capsys.readouterr().out
    root = copy(name)
    source = next(root.rglob("*.wav"))
    for number in range(2):
        shutil.copy(source, root / folder / f"new{number}.wav")
    make_task(name, root)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "without labels" in line]
    assert line.startswith("audio without labels in ")
    assert "2 skipped, first " in line
    assert line.endswith("new0.wav")


def test_a_corpus_with_one_speaker_cannot_be_split_by_speaker(copy: Callable[[str], Path]) -> None:
    root = copy("libri")
    for speaker in ("101", "102"):
        shutil.rmtree(root / "LibriSpeech" / "dev-clean" / speaker)
    with pytest.raises(UserError, match=r"dev-clean has 1 speaker\(s\); a split by speaker needs at least 3"):
        make_task("asr", root, lite=True)


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


def test_audio_without_labels_in_snips_is_left_out_and_named(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy("sf")
    shutil.copy(root / "SNIPS/test/Brian-snips-test-0.wav", root / "SNIPS/test/Brian-snips-test-77.wav")
    (fold,) = make_task("sf", root).folds
    assert len(fold.test) == 3
    assert "1 skipped, first Brian-snips-test-77" in capsys.readouterr().out


def test_one_class_leaves_nothing_to_learn_and_an_empty_part_is_refused(copy: Callable[[str], Path]) -> None:
    root = copy("ravdess")
    rows = [json.loads(line) | {"emotion": "sad"} for line in (root / "manifest.jsonl").read_text().splitlines()]
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="a slot with a single class, so there is nothing to learn"):
        make_task("ravdess", root)
    with pytest.raises(UserError, match="x: the dev part is empty"):
        Fold("x", [None], [], [None])  # type: ignore[list-item]
    with pytest.raises(UserError, match="there is no folder nowhere"):
        make_task("asr", Path("nowhere"))


def test_slot_filling_is_augmented_as_recognition_is(made: dict[str, Path]) -> None:
    """snips.yaml has `adaptive: false`: two stretches of time, whatever the length of the utterance."""
    x, frames = torch.ones(2, 1500, 768), torch.tensor([1500, 1500])
    slots, recognition = (
        make_task(name, made[corpus]).augmentation for name, corpus in (("sf", "sf"), ("asr", "libri"))
    )
    assert slots == recognition
    assert slots is not None
    for seed in range(5):
        masked = (slots(x, frames, torch.Generator().manual_seed(seed)) == 0).all(2)
        begins = masked[:, 1:] & ~masked[:, :-1]
        assert (begins.sum(1) <= 2).all()


def test_emotions_are_selected_on_the_part_that_s3prl_selects_on(copy: Callable[[str], Path]) -> None:
    """torch's random_split with seed 0 over the order of s3prl's lists, which is not alphabetical."""
    root = copy("er")
    for fold in make_task("er", root).folds:
        known = sorted(u.name for u in fold.train + fold.dev)
        assert split_by_torch(known) == {u.name for u in fold.dev}
    expected = {}
    for number in range(1, 6):
        others = [session for session in (4, 2, 1, 5, 3) if session != number]
        paths = [path for session in others for path in sorted((root / f"Session{session}").rglob("*.wav"))[::-1]]
        items = [{"path": str(path.relative_to(root)), "label": "neu", "speaker": "Ses01F"} for path in paths]
        folder = root / "meta_data" / f"Session{number}"
        folder.mkdir(parents=True)
        (folder / "train_meta_data.json").write_text(json.dumps({"labels": {}, "meta_data": items}))
        expected[f"Session{number}"] = split_by_torch([path.stem for path in paths])
    folds = make_task("er", root).folds
    assert {fold.name: {u.name for u in fold.dev} for fold in folds} == expected
    assert all(len(fold.train) + len(fold.dev) == 32 for fold in folds)
    (root / "meta_data/Session2/train_meta_data.json").write_text('{"meta_data": [{"path": "Session1/none.wav"}]}')
    with pytest.raises(UserError, match=r"Session2/train_meta_data\.json names none, which has no label"):
        make_task("er", root)
    (root / "meta_data/Session2/train_meta_data.json").unlink()
    with pytest.raises(UserError, match=r"there is no .*Session2/train_meta_data\.json"):
        make_task("er", root)


def split_by_torch(names: list[str]) -> set[str]:
    """The dev part of some names, as s3prl's emotion expert draws it."""
    train = int((1 - 0.2) * len(names))
    torch.manual_seed(0)
    _, dev = torch.utils.data.random_split(names, [train, len(names) - train])  # type: ignore[arg-type]
    return {names[index] for index in dev.indices}


def test_slots_and_phonemes_share_batches_by_label_in_the_full_protocol(made: dict[str, Path], tmp_path: Path) -> None:
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("".join(f"{word.upper()} AH1\n" for word in corpora.NUMBERS))
    full = [make_task("sf", made["sf"]), make_task("pr", made["libri"], lexicons=[lexicon])]
    others = [make_task("sf", made["sf"], lite=True), make_task("pr", made["libri"], lite=True)]
    others.append(make_task("asr", made["libri"]))
    assert [task.batching for task in full if isinstance(task, SequenceTask)] == [Batching.BY_LABEL] * 2
    assert [task.batching for task in others if isinstance(task, SequenceTask)] == [Batching.BY_LENGTH] * 3


def test_lite_recognition_takes_any_subset_and_any_list(made: dict[str, Path], tmp_path: Path) -> None:
    (fold,) = make_task("asr", made["libri"], lite=True, subset="train-clean-100").folds
    assert fold.name == "LibriSpeech train-clean-100 split by speaker"
    assert {u.path.parts[-4] for u in fold.train + fold.dev + fold.test} == {"train-clean-100"}
    (fold,) = make_task("pr", made["libri"], lite=True, subset="test-clean").folds
    assert {u.path.parts[-4] for u in fold.train} == {"test-clean"}
    with pytest.raises(UserError, match="--subset is for --lite"):
        make_task("asr", made["libri"], subset="test-clean")
    with pytest.raises(UserError, match="libri has no folder dev-other"):
        make_task("asr", made["libri"], lite=True, subset="dev-other")

    source = next((made["libri"]).rglob("*.flac"))
    rows = []
    for speaker in ("ann", "bob", "cid", "dee"):
        shutil.copy(source, tmp_path / f"{speaker}.flac")
        rows.append({"path": f"{speaker}.flac", "text": f"It's {speaker}, hello!", "speaker": speaker})
    rows.append({"path": "ann.flac", "text": "...", "speaker": "ann"})  # nothing to spell
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (fold,) = make_task("asr", tmp_path, lite=True).folds
    parts = [speakers(part) for part in (fold.train, fold.dev, fold.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 4
    assert {u.label for u in fold.train + fold.dev + fold.test} == {
        f"IT'S {s.upper()} HELLO" for s in set.union(*parts)
    }
    assert fold.name == f"labelled speech ({tmp_path.name}) split by speaker"
