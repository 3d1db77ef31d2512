"""Readers of the corpora of the tasks: the parts, labels and speakers that they find in the true layouts."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import superb_corpora as corpora
import torch
from superb_corpora import speakers

from sjepa.errors import UserError
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.sequences import Batching, SequenceTask
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.superb.text import Characters

pytest.importorskip("espeakng_loader")


def test_librispeech_parts_and_labels(superb_data: dict[str, Path]) -> None:
    task = make_task("asr", superb_data["libri"])
    assert isinstance(task, SequenceTask)
    (fold,) = task.folds
    assert (len(fold.train), len(fold.dev), len(fold.test)) == (12, 12, 6)
    assert fold.train[0].name == "100-11-0000"
    assert fold.train[0].path.read_bytes()[:4] == b"fLaC"
    assert set(str(fold.train[0].label).split()) <= {word.upper() for word in corpora.NUMBERS}
    assert (task.recurrent, task.recipe.steps, task.recipe.batch * task.recipe.accumulate) == (1024, 200_000, 16)
    assert librispeech.read_speaker_sexes(superb_data["libri"]) == {"100": "F", "101": "M", "102": "F"}


def test_phonemes_come_from_a_lexicon_or_from_alignments(superb_data: dict[str, Path], tmp_path: Path) -> None:
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("ONE\tW AH1 N\nONE\tHH W AH1 N\nTWO\tT UW1\nTHREE\tTH R IY1\nFOUR\tF AO1 R\nFIVE\tF AY1 V\n")
    with pytest.raises(UserError, match=r"lexicon\.txt lacks 1 words of the transcripts, first SIX"):
        make_task("pr", superb_data["libri"], lexicons=[lexicon])
    lexicon.write_text(lexicon.read_text() + "\nSIX\tS IH1 K S\n\n")  # empty lines say nothing
    task = make_task("pr", superb_data["libri"], lexicons=[lexicon])
    assert isinstance(task, SequenceTask)
    assert len(task.symbols.symbols) == 74
    assert set(str(task.folds[0].train[0].label).split()) <= set(task.symbols.symbols)
    first, second = tmp_path / "200k.txt", tmp_path / "allothers.txt"
    first.write_text("".join(lexicon.read_text().splitlines(keepends=True)[:4]))
    second.write_text("ONE\tOW1\n" + "".join(lexicon.read_text().splitlines(keepends=True)[4:]))
    merged = make_task("pr", superb_data["libri"], lexicons=[first, second])
    assert merged.folds == task.folds  # of a word in both, the first lexicon's pronunciation
    with pytest.raises(UserError, match=r"200k\.txt lacks \d words"):
        make_task("pr", superb_data["libri"], lexicons=[first])
    with pytest.raises(UserError, match="needs pronunciations: --lexicon"):
        make_task("pr", superb_data["libri"])
    assert librispeech.merge_phones(["SIL", "A", "A", "SIL", "A", "B", "B", "SIL"]) == "A A B"


def test_iemocap_holds_out_a_session_a_fold(superb_data: dict[str, Path]) -> None:
    folds = make_task("er", superb_data["er"]).folds
    assert [fold.name for fold in folds] == [f"Session{n}" for n in range(1, 6)]
    for fold in folds:
        assert {u.name[:5] for u in fold.test} == {f"Ses0{fold.name[-1]}"}
        assert not {u.name for u in fold.test} & {u.name for u in fold.train + fold.dev}
        assert {u.label for u in fold.train} == {("neutral",), ("happy",), ("angry",), ("sad",)}
        assert len(fold.dev) == 32 - int(0.8 * 32)


def test_snips_is_split_by_its_speakers_and_marks_its_slots(superb_data: dict[str, Path]) -> None:
    (fold,) = make_task("sf", superb_data["sf"]).folds
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


def test_speech_commands_are_split_by_hash_and_silence_is_cropped(superb_data: dict[str, Path]) -> None:
    (fold,) = make_task("ks", superb_data["ks"]).folds
    assert {corpora.part_of(u.speaker) for u in fold.train if u.label != ("_silence_",)} == {"train"}
    assert {corpora.part_of(u.speaker) for u in fold.dev if u.label != ("_silence_",)} == {"dev"}
    assert {u.label[0] for u in fold.test} == {"yes", "_unknown_", "_silence_"}
    assert all(u.crop == 16_000 for u in fold.train if u.label == ("_silence_",))
    assert all(u.crop == 0 for u in fold.test)


def test_fluent_commands_have_three_slots_and_voxceleb_its_own_split(superb_data: dict[str, Path]) -> None:
    (fold,) = make_task("ic", superb_data["ic"]).folds
    assert ("activate", "lights", "none") in {u.label for u in fold.train}
    assert not speakers(fold.train) & speakers(fold.test)
    (fold,) = make_task("sid", superb_data["sid"]).folds
    assert (len(fold.train), len(fold.dev), len(fold.test)) == (10, 2, 2)
    assert speakers(fold.train) == speakers(fold.test) == {"id10001", "id10002"}


def test_ravdess_folds_share_no_actor_and_coffee_slots_may_be_empty(superb_data: dict[str, Path]) -> None:
    for fold in make_task("ravdess", superb_data["ravdess"]).folds:
        parts = [speakers(part) for part in (fold.train, fold.dev, fold.test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 5
    (fold,) = make_task("coffee", superb_data["coffee"]).folds
    assert (len(fold.train), len(fold.dev), len(fold.test)) == (7, 1, 2)
    assert any(u.label[1] == "" for u in fold.train)


def test_a_manifest_is_read_as_an_index_reads_it(
    superb_copy: Callable[[str], Path], superb_data: dict[str, Path]
) -> None:
    root = superb_copy("ravdess")
    rows = [json.loads(line) for line in (root / "manifest.jsonl").read_text().splitlines()]

    def write(*changes: dict[str, object]) -> None:
        lines = [row | change for row, change in zip(rows, [*changes, *[{}] * len(rows)], strict=False)]
        (root / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))

    usual = make_task("ravdess", superb_data["ravdess"]).folds
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


def test_a_part_of_librispeech_is_read_if_no_text_is_needed(superb_copy: Callable[[str], Path]) -> None:
    """As by probes: transcripts of audio that was left out do not matter."""
    root = superb_copy("libri")
    whole = read_labelled(root, phones=False)
    whole[0].utterance.path.unlink()
    part = read_labelled(root, phones=False)
    assert [item.utterance.name for item in part] == [item.utterance.name for item in whole[1:]]
    assert part[0].utterance.label == whole[1].utterance.label


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


def test_labels_are_encoded_once(superb_data: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("asr", superb_data["libri"])
    labels = [u.label for u in task.folds[0].train[:2]]
    monkeypatch.setattr(Characters, "encode", None)
    assert torch.isfinite(task.loss(torch.zeros(2, 50, 32), torch.tensor([50, 40]), labels))
    assert task.score(labels, labels)["wer"] == 0


def test_slot_filling_is_augmented_as_recognition_is(superb_data: dict[str, Path]) -> None:
    """snips.yaml has `adaptive: false`: two stretches of time, whatever the length of the utterance."""
    x, frames = torch.ones(2, 1500, 768), torch.tensor([1500, 1500])
    slots, recognition = (
        make_task(name, superb_data[corpus]).augmentation for name, corpus in (("sf", "sf"), ("asr", "libri"))
    )
    assert slots == recognition
    assert slots is not None
    for seed in range(5):
        masked = (slots(x, frames, torch.Generator().manual_seed(seed)) == 0).all(2)
        begins = masked[:, 1:] & ~masked[:, :-1]
        assert (begins.sum(1) <= 2).all()


def test_emotions_are_selected_on_the_part_that_s3prl_selects_on(superb_copy: Callable[[str], Path]) -> None:
    """torch's random_split with seed 0 over the order of s3prl's lists, which is not alphabetical."""
    root = superb_copy("er")
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


def test_slots_and_phonemes_share_batches_by_label_in_the_full_protocol(
    superb_data: dict[str, Path], tmp_path: Path
) -> None:
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("".join(f"{word.upper()} AH1\n" for word in corpora.NUMBERS))
    full = [make_task("sf", superb_data["sf"]), make_task("pr", superb_data["libri"], lexicons=[lexicon])]
    others = [make_task("sf", superb_data["sf"], lite=True), make_task("pr", superb_data["libri"], lite=True)]
    others.append(make_task("asr", superb_data["libri"]))
    assert [task.batching for task in full if isinstance(task, SequenceTask)] == [Batching.BY_LABEL] * 2
    assert [task.batching for task in others if isinstance(task, SequenceTask)] == [Batching.BY_LENGTH] * 3
