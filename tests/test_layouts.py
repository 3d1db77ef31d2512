"""Corpora in the layouts of other tools: what is read from them, and what is refused in one clear line."""

import errno
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import babble

from sjepa.data.build import build_index
from sjepa.data.index import open_index, read_labels
from sjepa.data.layouts import LAYOUTS, Item, detect_layout, find_items, find_layout, hugging_face
from sjepa.data.opening import open_one
from sjepa.data.shards import write_shards
from sjepa.data.splits import find_split_part
from sjepa.errors import UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, seconds: float = 1.0, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, babble(seconds, seed), 16_000)
    return path


def found(source: Path, layout: str = "auto") -> tuple[list[Item], list[str]]:
    everything = list(find_items([str(source)], layout))
    return [item for item in everything if isinstance(item, Item)], [
        line for line in everything if isinstance(line, str)
    ]


def kaldi(root: Path, **files: str) -> Path:
    """A data directory, each file given as its lines."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("wav_scp", "wav.scp")).write_text(text, encoding="utf-8")
    return root


def test_every_layout_is_a_module_that_recognises_and_reads() -> None:
    for name in LAYOUTS:
        module = find_layout(name)
        assert callable(module.recognises)
        assert callable(module.items)


def test_kaldi_folders_are_splits_and_paths_are_found_from_above(tmp_path: Path) -> None:
    root = tmp_path / "iban"
    for name in ("a", "b"):
        write(root / "wav" / f"{name}.wav")
    kaldi(
        root / "train",
        wav_scp="a wav/a.wav\n",
        text="a satu dua\n",
        utt2spk="a s1\n",
        spk2gender="s1 f\n",
        utt2lang="a iba\n",
    )
    kaldi(root / "test", wav_scp="b wav/b.wav\n", text="b tiga\n", utt2spk="b s2\n")
    assert detect_layout(str(root)) == detect_layout(str(root / "train")) == "kaldi"
    items, refused = found(root)
    assert not refused
    assert [(i.id, i.split, i.speaker, i.sex, i.text) for i in items] == [
        ("b", "test", "s2", "", "tiga"),
        ("a", "train", "s1", "F", "satu dua"),
    ]
    assert json.loads(items[1].labels) == {"lang": "iba"}
    assert items[1].place.path == str(root / "wav" / "a.wav")


def test_kaldi_segments_are_stretches_of_recordings(tmp_path: Path) -> None:
    write(tmp_path / "audio" / "long.wav", seconds=4.0)
    folder = kaldi(
        tmp_path / "data",
        wav_scp="long ../audio/long.wav\n",
        segments="u1 long 0.5 1.75\nu2 long 2.0 -1\nu3 long 3 2\nu4 other 0 1\nu5 long x 2\n",
        text="u1 one\nu2 two\nu9 lost\n",
    )
    items, refused = found(folder)
    assert [(i.id, i.offset, i.duration, i.text) for i in items] == [("u1", 0.5, 1.25, "one"), ("u2", 2.0, None, "two")]
    assert [line.partition("data/")[2] for line in refused] == [
        "segments line 3: the stretch from 3 to 2 s is not valid",
        "segments line 4: u4 belongs to other, which is not in wav.scp",
        "segments line 5: 'long x 2' is not RECORDING START END",
        "text: u9 has no audio",
    ]
    corpus = open_one(str(folder), 15.0)
    assert corpus.length.tolist() == [20_000, 32_000]
    whole = open_one(str(tmp_path / "audio"), 15.0)
    assert np.array_equal(corpus.read(0), whole.read(0, 8_000, 20_000))


def test_kaldi_texts_without_audio_are_refused_in_order(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    lost = [f"u{number:02d}" for number in range(20)]
    _, refused = found(kaldi(tmp_path, wav_scp="a a.wav\n", text="".join(f"{name} lost\n" for name in lost)))
    assert [line.rpartition(": ")[2] for line in refused] == [f"{name} has no audio" for name in lost]


def test_kaldi_files_may_separate_the_key_with_a_tab(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    folder = kaldi(tmp_path, wav_scp="utt1\ta.wav\n", text="utt1\tHELLO WORLD\n", utt2spk="utt1\tann\n")
    (item,), refused = found(folder)
    assert (item.id, item.text, item.speaker, refused) == ("utt1", "HELLO WORLD", "ann", [])


def test_commands_in_wav_scp_are_refused_and_never_run(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    touched = tmp_path / "touched"
    lines = f"a a.wav\nb touch {touched} |\nc sph2pipe -f wav x.sph |\nd raw.ark:57\ne gone.wav\nf\n"
    items, refused = found(kaldi(tmp_path, wav_scp=lines))
    assert [item.id for item in items] == ["a"]
    assert not touched.exists()
    assert "line 2: b is the output of a command (touch /" in refused[0]
    assert refused[0].endswith("), which is not run: save its audio")
    assert "line 3: c is the output of a command" in refused[1]
    assert "line 4: d is in an archive (raw.ark:57): write its audio to a separate file" in refused[2]
    assert "line 5: there is no gone.wav, neither in" in refused[3]
    assert "line 6: f has no path" in refused[4]


def cut(name: str, path: str, start: float = 0.0, duration: float = 1.0, **more: Any) -> dict[str, Any]:
    recording = {
        "id": f"rec-{name}",
        "sources": [{"type": "file", "channels": [0], "source": path}],
        "sampling_rate": 16_000,
        "num_samples": 32_000,
        "duration": 2.0,
        "channel_ids": [0],
    }
    basics = {"id": name, "start": start, "duration": duration, "channel": 0, "supervisions": [], "type": "MonoCut"}
    return basics | {"recording": recording} | more


def supervision(name: str, start: float, duration: float, **more: Any) -> dict[str, Any]:
    return {"id": name, "recording_id": "rec", "start": start, "duration": duration, "channel": 0} | more


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_lhotse_cuts_are_read_with_their_supervisions(tmp_path: Path) -> None:
    write(tmp_path / "audio" / "a.wav", 2.0)
    spoken = supervision("s1", 0.0, 1.0, text="hello", speaker="ann", gender="female", custom={"emotion": "calm"})
    two = [supervision("s2", 0.0, 0.5, text="one"), supervision("s3", 0.5, 0.4, text="two", language="en")]
    command = cut("c5", "x")
    command["recording"]["sources"] = [{"type": "command", "channels": [0], "source": "touch here"}]
    stereo = cut("c6", "audio/a.wav")
    stereo["recording"]["sources"][0]["channels"] = [0, 1]
    rows = [
        cut("c1", "audio/a.wav", 0.25, 1.0, supervisions=[spoken]),
        cut("c2", "audio/a.wav", 1.0, 1.0, supervisions=two),
        cut("c3", "audio/a.wav"),
        {"id": "c4", "type": "MixedCut", "tracks": []},
        command,
        stereo,
        cut("c7", "audio/none.wav"),
    ]
    (tmp_path / "manifests").mkdir()
    file = jsonl(tmp_path / "manifests" / "mine_cuts_train.jsonl.gz", rows)
    assert detect_layout(str(file)) == detect_layout(str(file.parent)) == "lhotse"
    items, refused = found(file.parent)
    assert [(i.id, i.offset, i.duration, i.text, i.speaker, i.sex, i.split) for i in items] == [
        ("c1", 0.25, 1.0, "hello", "ann", "F", "train"),
        ("s2", 1.0, 0.5, "one", "", "", "train"),
        ("s3", 1.5, 0.4, "two", "", "", "train"),
        ("c3", 0.0, 1.0, "", "", "", "train"),
    ]
    assert json.loads(items[0].labels) == {"emotion": "calm"}
    reasons = ["is a MixedCut without its own recording", "output of a command (touch here), which is not run"]
    reasons += ["one of several channels", "there is no audio/none.wav"]
    assert len(refused) == 4
    for line, reason in zip(refused, reasons, strict=True):
        assert reason in line
    corpus = open_one(str(file), 15.0)
    assert corpus.length.tolist() == [16_000, 8_000, 6_400, 16_000]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be decompressed"):
        list(find_items([str(file)], "lhotse"))


def test_lhotse_recordings_and_supervisions_are_joined(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", 2.0)
    recording = cut("x", "a.wav")["recording"] | {"id": "rec"}
    jsonl(tmp_path / "mine_recordings_dev.jsonl", [recording])
    lost = supervision("lost", 0, 1) | {"recording_id": "gone"}
    jsonl(tmp_path / "mine_supervisions_dev.jsonl", [supervision("s", 0.0, 2.0, text="hi", speaker="bob"), lost])
    items, refused = found(tmp_path)
    assert [(i.id, i.text, i.speaker, i.split, i.duration) for i in items] == [("rec", "hi", "bob", "dev", 2.0)]
    assert "lost belongs to gone, which is in no recordings manifest" in refused[0]


def test_one_lhotse_supervision_in_a_long_recording_is_its_own_stretch(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", 2.0)
    names = ("short", "nearly")
    jsonl(tmp_path / "mine_recordings_dev.jsonl", [cut("x", "a.wav")["recording"] | {"id": name} for name in names])
    spoken = [supervision("s", 0.5, 0.75, text="hi"), supervision("t", 0.0, 1.95, text="ho")]
    rows = [row | {"recording_id": name} for row, name in zip(spoken, names, strict=True)]
    jsonl(tmp_path / "mine_supervisions_dev.jsonl", rows)
    items, refused = found(tmp_path)
    assert not refused
    assert [(i.id, i.offset, i.duration, i.text) for i in items] == [("s", 0.5, 0.75, "hi"), ("nearly", 0.0, 2.0, "ho")]
    # A cut is a part of its recording, and its supervision is relative to the cut.
    file = jsonl(tmp_path / "c.jsonl", [cut("c", "a.wav", 0.25, 1.5, supervisions=[spoken[0]])])
    assert [(i.id, i.offset, i.duration, i.text) for i in found(file)[0]] == [("s", 0.75, 0.75, "hi")]


def test_a_lhotse_manifest_in_a_folder_called_recordings_finds_its_supervisions(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    write(folder / "a.wav", 2.0)
    jsonl(folder / "mine_recordings_dev.jsonl", [cut("x", "a.wav")["recording"] | {"id": "rec"}])
    jsonl(folder / "mine_supervisions_dev.jsonl", [supervision("s", 0.0, 2.0, text="hi", speaker="bob")])
    items, _ = found(folder / "mine_recordings_dev.jsonl")
    assert [(i.text, i.speaker) for i in items] == [("hi", "bob")]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_an_audiofolder_is_read_by_its_metadata(tmp_path: Path, ending: str) -> None:
    rows = [{"file_name": "train/a.wav", "transcription": "ja", "emotion": "glad"}]
    rows += [{"file_name": "test/b.wav", "transcription": "nein", "emotion": "sad"}]
    for name in ("train/a", "test/b", "test/c"):
        write(tmp_path / f"{name}.wav")
    file = tmp_path / f"metadata.{ending}"
    if ending == "csv":
        file.write_text("file_name,transcription,emotion\ntrain/a.wav,ja,glad\ntest/b.wav,nein,sad\n")
    elif ending == "jsonl":
        jsonl(file, rows)
    else:
        parquet.write_table(pa.Table.from_pylist(rows), file)
    assert detect_layout(str(tmp_path)) == "audiofolder"
    items, refused = found(tmp_path)
    assert [(i.split, i.text, json.loads(i.labels)) for i in items] == [
        ("train", "ja", {"emotion": "glad"}),
        ("test", "nein", {"emotion": "sad"}),
    ]
    assert refused == [f"{tmp_path}/test/c.wav: no metadata file names it"]


def test_an_audiofolder_without_metadata_has_folders_for_classes(tmp_path: Path) -> None:
    for name in ("train/yes/1", "train/no/2", "test/yes/3"):
        write(tmp_path / f"{name}.wav")
    assert detect_layout(str(tmp_path)) == "folder"
    items, _ = found(tmp_path, "audiofolder")
    assert [(i.split, json.loads(i.labels)["label"]) for i in items] == [
        ("test", "yes"),
        ("train", "no"),
        ("train", "yes"),
    ]


def test_a_folder_of_common_voice_is_not_a_split_but_a_split_may_be_called_cv(tmp_path: Path) -> None:
    write(tmp_path / "cv-corpus-17.0" / "clips" / "1.wav")
    items, _ = found(tmp_path, "audiofolder")
    assert [(i.split, json.loads(i.labels)["label"]) for i in items] == [("", "clips")]
    assert [find_split_part(name) for name in ("train_si84", "Validation", "cv05", "eval92", "other")] == [
        "train",
        "dev",
        "dev",
        "test",
        "",
    ]


def audio_table(tmp_path: Path, names: str) -> Any:
    """Rows with audio as Hugging Face keeps it, and a column of classes by number."""
    rows = []
    for index, name in enumerate(names):
        content = write(tmp_path / "made" / f"{name}.wav", 1.0 + 0.25 * index, index).read_bytes()
        rows.append({"audio": {"bytes": content, "path": f"{name}.wav"}, "text": name, "intent": index % 2, "spk": "s"})
    kinds = {"audio": {"_type": "Audio"}, "intent": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": kinds}})}
    return pa.Table.from_pylist(rows).replace_schema_metadata(metadata)


def save_arrow(table: Any, path: Path, compression: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)


def as_dataset(tmp_path: Path, train: str = "abc") -> Path:
    folder = tmp_path / "saved"
    save_arrow(audio_table(tmp_path, train), folder / "train" / "data-00000-of-00001.arrow")
    save_arrow(audio_table(tmp_path, "de"), folder / "test" / "data-00000-of-00001.arrow")
    for split in ("train", "test"):
        (folder / split / "state.json").write_text("{}")
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder


def as_parquet(tmp_path: Path) -> Path:
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    parquet.write_table(audio_table(tmp_path, "abc"), folder / "train-00000-of-00001.parquet")
    parquet.write_table(audio_table(tmp_path, "de"), folder / "test-00000-of-00001.parquet")
    return folder.parent


@pytest.mark.parametrize("save", [as_dataset, as_parquet])
def test_audio_inside_arrow_and_parquet_is_read(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    folder = save(tmp_path)
    assert detect_layout(str(folder)) == "hugging_face"
    items, refused = found(folder)
    assert not refused
    assert sorted((i.split, i.text, i.speaker, json.loads(i.labels)["intent"]) for i in items) == [
        ("test", "d", "s", "no"),
        ("test", "e", "s", "yes"),
        ("train", "a", "s", "no"),
        ("train", "b", "s", "yes"),
        ("train", "c", "s", "no"),
    ]
    build_index([str(folder)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    table = read_labels(str(tmp_path / "index")).to_pylist()
    for corpus in (open_index(str(tmp_path / "index")), open_one(str(folder), 15.0)):
        for index, row in enumerate(table):
            decoded, _ = soundfile.read(tmp_path / "made" / f"{row['text']}.wav", dtype="int16")
            assert np.array_equal(corpus.read(index), decoded)


def test_a_full_disk_while_parquet_is_unpacked_ends_the_command_and_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = as_parquet(tmp_path), tmp_path / "index"

    def fill_disk(*_: object) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def build() -> dict[str, Any]:
        return build_index([str(folder)], out, layout="auto", max_seconds=15.0, cut_transcribed=False)

    with monkeypatch.context() as patch:
        patch.setattr(hugging_face, "atomic_file", fill_disk)
        with pytest.raises(UserError, match=r"^cannot write to .*unpacked \(No space left on device\)$"):
            build()
        with pytest.raises(UserError, match="No space left on device"):
            open_one(str(folder), 15.0)
    facts = build()
    assert (facts["utterances"], facts["refused"]) == (5, 0)


def test_training_without_an_index_cuts_transcribed_speech_too(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", 5.0)
    folder = kaldi(tmp_path / "train", wav_scp="a a.wav\n", text="a some words\n", utt2spk="a ann\n")
    length = open_one(str(folder), 2.0).length
    assert length.max() <= 32_000
    assert length.sum() == 80_000


def test_an_index_and_its_shards_keep_splits_and_further_columns(tmp_path: Path) -> None:
    folder = as_dataset(tmp_path)
    build_index([str(folder)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    write_shards(str(tmp_path / "index"), tmp_path / "shards", encoding="flac", shard_hours=1.0, seed=0, workers=1)
    build_index(
        [str(tmp_path / "shards" / "000000.tar")],
        tmp_path / "again",
        layout="auto",
        max_seconds=15.0,
        cut_transcribed=False,
    )
    for place in ("index", "shards", "again"):
        rows = {row["text"]: row for row in read_labels(str(tmp_path / place)).to_pylist()}
        assert (rows["b"]["split"], json.loads(rows["b"]["labels"])) == ("train", {"intent": "yes"})
        assert rows["e"]["split"] == "test"


def test_tables_that_hold_no_audio_or_are_damaged_are_refused(tmp_path: Path) -> None:
    folder = as_dataset(tmp_path)
    file = folder / "train" / "data-00000-of-00001.arrow"
    whole = file.read_bytes()
    file.write_bytes(b"not arrow at all")
    _, refused = found(folder)
    assert any("data-00000-of-00001.arrow: cannot be read as a table" in line for line in refused)
    file.write_bytes(whole)
    empty = pa.table({"audio": pa.array([{"bytes": None, "path": "gone.wav"}]), "text": ["x"]})
    save_arrow(empty, file)
    _, refused = found(folder)
    assert any("row 0: no audio (gone.wav)" in line for line in refused)
    save_arrow(audio_table(tmp_path, "ab"), file, "zstd")
    _, refused = found(folder)
    assert any("row 0: its audio is compressed: save the dataset without compression" in line for line in refused)


def test_pretraining_reads_lists_and_refuses_other_files(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    (tmp_path / "list.csv").write_text("path,mood\na.wav,calm\n")
    corpus = open_one(str(tmp_path / "list.csv"), 15.0)
    assert (len(corpus), corpus.is_cut) == (1, False)
    assert corpus.identity
    (tmp_path / "list.csv").write_text("path\nb.wav\n")
    with pytest.raises(UserError, match=r"no usable audio in .*list\.csv: .*b\.wav"):
        open_one(str(tmp_path / "list.csv"), 15.0)
    with pytest.raises(UserError, match="is a file: give a folder of audio"):
        open_one(str(tmp_path / "a.wav"), 15.0)
