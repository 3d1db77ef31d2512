"""Indexing LibriSpeech, LibriLight, NeMo manifests, plain lists and tars: utterances with their labels."""

import csv
import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from small_indexes import index, labels, refused, write

from sjepa import UserError
from sjepa.audio.io import read_audio
from sjepa.data.corpus import scan_folder
from sjepa.data.index import open_index, read_table
from sjepa.data.opening import open_corpus


def test_librispeech_gives_speakers_sexes_chapters_and_transcripts(tmp_path: Path) -> None:
    root = tmp_path / "LibriSpeech"
    for name in ("19-198-0000", "19-198-0001", "19-227-0000", "26-495-0000"):
        speaker, chapter, _ = name.split("-")
        write(root / "dev" / speaker / chapter / f"{name}.flac", 16.5 if name == "26-495-0000" else 1.5)
    for chapter, lines in {
        "19/198/19-198": "19-198-0000 A B\n19-198-0001 C D\n",
        "26/495/26-495": "26-495-0000 E\n",
    }.items():
        (root / "dev" / f"{chapter}.trans.txt").write_text(lines)
    (root / "SPEAKERS.TXT").write_text(";ID |SEX| SUBSET\n19   | F | dev | 25.19 | K\n26   | M | dev | 8.0 | D\n")
    for source in (root, root / "dev"):
        out = tmp_path / f"index-{source.name}"
        facts = index(source, out=out)
        assert (facts["utterances"], facts["speakers"], facts["chapters"], facts["sexes"]) == (
            4,
            2,
            3,
            {"F": 1, "M": 1},
        )
        rows = {row["id"]: row for row in labels(out)}
        assert rows["19-198-0001"] == {
            "id": "19-198-0001",
            "speaker": "19",
            "sex": "F",
            "chapter": "19-198",
            "text": "C D",
        }
        assert rows["19-227-0000"]["text"] == ""
        assert max(open_index(str(out)).length) == 264_000  # a transcribed utterance stays whole
    index(root, out=tmp_path / "cut", cut=True)
    rows = {row["id"]: row for row in labels(tmp_path / "cut")}
    assert rows["26-495-0000#0000"]["text"] == ""
    assert max(open_index(str(tmp_path / "cut")).length) <= 240_000


def test_librilight_is_cut_by_its_voice_activity(tmp_path: Path) -> None:
    root = tmp_path / "small"
    voice = [[0.5, 4.0], [4.3, 9.0], [12.0, 13.5], [13.6, 40.0]]
    for name, metadata in {"a_64kb": {"speaker": "960", "voice_activity": voice}, "b_64kb": None}.items():
        write(root / "960" / "a_book" / f"{name}.flac", 42.0)
        if metadata:
            (root / "960" / "a_book" / f"{name}.json").write_text(json.dumps(metadata))
    write(root / "961" / "b_book" / "c_64kb.flac")
    (root / "961" / "b_book" / "c_64kb.json").write_text("{ half of")
    facts = index(root, out=tmp_path / "index")
    opened = open_index(str(tmp_path / "index"))
    assert max(opened.length) <= 240_000
    rows = labels(tmp_path / "index")
    first = [n for n, row in enumerate(rows) if row["id"].startswith("960/a_book/a_64kb#")]
    spans = [(int(opened.start[n]), int(opened.start[n] + opened.length[n])) for n in first]
    assert spans[0] == (8_000, 144_000)  # 0.5 to 9.0 s: two stretches over a short pause
    assert spans[1][0] == 192_000  # 12.0 s: the silence before is left out
    assert spans[-1][1] == 640_000  # 40.0 s
    assert {row["speaker"] for row in rows} == {"960"}
    second = [n for n, row in enumerate(rows) if row["id"].startswith("960/a_book/b_64kb#")]
    assert sum(int(opened.length[n]) for n in second) == 672_000  # no metadata: cut at silences, nothing lost
    assert "c_64kb.flac: its .json is damaged" in refused(tmp_path / "index")
    assert facts["refused"] == 1


def test_a_nemo_manifest_gives_stretches_with_text_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "wav" / "long.wav", 10.0, 3)
    lines = [
        {"audio_filepath": "wav/long.wav", "offset": 2.0, "duration": 3.0, "text": "two to five", "speaker": "s1"},
        {"audio_filepath": "wav/long.wav", "offset": 6.0, "duration": 4.05, "text": "rounded up"},
        {"audio_filepath": "wav/long.wav", "offset": 8.0, "duration": 3.0, "text": "beyond the end"},
        {"audio_filepath": "wav/long.wav", "offset": 11.0, "duration": 1.0, "text": "starts beyond the end"},
        {"audio_filepath": "wav/long.wav", "offset": -1.0, "duration": 3.0},
        {"audio_filepath": "wav/long.wav", "offset": 1.0, "duration": 0.0},
        {"audio_filepath": "wav/long.wav", "offset": 1.0, "duration": "NaN"},
        {"audio_filepath": "wav/missing.wav", "duration": 1.0},
        {"duration": 1.0},
        {"audio_filepath": "wav/long.wav", "offset": 2.0, "duration": 3.0, "text": "the same again"},
    ]
    manifest = tmp_path / "manifest.json"
    manifest.write_text("\n".join(map(json.dumps, lines)) + "\n{ not json\n[]\n")
    facts = index(manifest, out=tmp_path / "index")
    opened = open_index(str(tmp_path / "index"))
    assert [row["text"] for row in labels(tmp_path / "index")] == ["two to five", "rounded up"]
    assert opened.start.tolist() == [32_000, 96_000]
    assert opened.length.tolist() == [48_000, 64_000]
    whole = read_audio(tmp_path / "wav" / "long.wav")
    np.testing.assert_allclose(opened.read(0) / 32768, whole[32_000:80_000], atol=1e-4)
    reasons = refused(tmp_path / "index")
    assert facts["refused"] == 10 == len(reasons.splitlines())
    for words in (
        "ends at 11.00 s, but the recording ends at 10.00 s",
        "line 5: offset -1.0",
        "line 6: offset 1.0",
        "line 7",
        "missing.wav",
        "line 9: no audio is named",
        "an earlier utterance has the same id",
        "line 11: not valid JSON",
        "line 12: not a JSON object",
    ):
        assert words in reasons


def test_a_tarred_nemo_manifest_reads_members_of_its_tars(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "audio_0.tar", "w") as tar:
        for name in ("a.wav", "b.flac"):
            tar.add(write(tmp_path / "loose" / name, 4.0, len(name)), name)
    lines = [
        {"audio_filepath": "a.wav", "duration": 4.0, "text": "a", "shard_id": 0},
        {"audio_filepath": "b.flac", "duration": 1.0, "text": "b", "shard_id": 0},
        {"audio_filepath": "b-sub1.flac", "offset": 2.0, "duration": 1.5, "text": "more of b", "shard_id": 0},
        {"audio_filepath": "c.wav", "duration": 1.0, "shard_id": 0},
        {"audio_filepath": "a.wav", "duration": 1.0, "shard_id": 7},
    ]
    (tmp_path / "sharded_manifests").mkdir()
    manifest = tmp_path / "sharded_manifests" / "manifest_0.json"
    manifest.write_text("\n".join(map(json.dumps, lines)))
    index(manifest, out=tmp_path / "index")
    opened = open_index(str(tmp_path / "index"))
    assert [row["text"] for row in labels(tmp_path / "index")] == ["a", "b", "more of b"]
    whole = read_audio(tmp_path / "loose" / "b.flac")
    np.testing.assert_allclose(opened.read(2) / 32768, whole[32_000:56_000], atol=1e-4)
    assert "has no member c.wav" in refused(tmp_path / "index")
    assert "there is no audio_7.tar" in refused(tmp_path / "index")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_plain_lists_are_read(tmp_path: Path, ending: str) -> None:
    rows = [{"path": f"{name}.wav", "speaker": name, "gender": "F", "text": f"{name}, here"} for name in ("x", "y")]
    for row in rows:
        write(tmp_path / row["path"])
    path = tmp_path / f"list.{ending}"
    if ending == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if ending == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    index(path, out=tmp_path / "index")
    assert labels(tmp_path / "index") == [
        {"id": name, "speaker": name, "sex": "F", "chapter": "", "text": f"{name}, here"} for name in ("x", "y")
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [("list.csv", "path,speaker\nx.wav,Jörg\n"), ("list.jsonl", '{"path": "x.wav", "speaker": "Jörg"}\n')],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lists_with_a_byte_order_mark_are_read(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    write(tmp_path / "x.wav")
    content = b"\xef\xbb\xbf" + text.encode()
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    index(path, out=tmp_path / "index")
    assert [(row["id"], row["speaker"]) for row in labels(tmp_path / "index")] == [("x", "Jörg")]


def test_a_folder_with_a_manifest_is_read_by_it_and_audio_that_it_does_not_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    rows = [
        {"id": name, "dur": 1.5, "spk": number, "gender": "F", "text": name, "path": f"./audio/{name}.wav"}
        for number, name in enumerate(("x", "y"))
    ]
    for name in ("x", "y", "z"):
        write(folder / "audio" / f"{name}.wav")
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n{ not json\n")
    expected = [{"id": n, "speaker": s, "sex": "F", "chapter": "", "text": n} for n, s in (("x", "0"), ("y", "1"))]
    for layout in ("auto", "manifest"):
        index(folder, out=tmp_path / layout, layout=layout)
        assert labels(tmp_path / layout) == expected
        damaged, unnamed = refused(tmp_path / layout).splitlines()
        assert "manifest.jsonl line 3: not valid JSON" in damaged
        assert unnamed.endswith("set/audio/z.wav: manifest.jsonl does not name it")
    assert len(open_corpus(str(folder), 15.0, "none", 0.0, False)) == 2  # training uses what an index would have
    assert index(folder, out=tmp_path / "plain", layout="folder")["speakers"] == 0
    with pytest.raises(UserError, match="audio is not a list"):
        index(folder / "audio", out=tmp_path / "none", layout="manifest")


def test_a_manifest_behind_a_link_names_its_audio_by_absolute_paths(tmp_path: Path) -> None:
    named, _ = [write(tmp_path / "real" / "wav" / f"{name}.wav") for name in ("a", "b")]
    (tmp_path / "real" / "manifest.jsonl").write_text(json.dumps({"path": str(named)}))
    (tmp_path / "link").symlink_to("real")
    assert index(tmp_path / "link", out=tmp_path / "index")["utterances"] == 1
    assert refused(tmp_path / "index") == f"{tmp_path}/link/wav/b.wav: manifest.jsonl does not name it\n"


def test_a_list_behind_a_link_may_name_audio_in_the_folder_above_it(tmp_path: Path) -> None:
    write(tmp_path / "store" / "audio" / "a.wav", 2.0)
    write(tmp_path / "corpus" / "audio" / "a.wav", 3.0)  # its path without `list/..`
    write(tmp_path / "corpus" / "other" / "b.wav", 4.0)
    for folder, path in (("store/list", "../audio/a.wav"), ("corpus/other", "./b.wav")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "train.jsonl").write_text(json.dumps({"path": path}))
    (tmp_path / "corpus" / "list").symlink_to(tmp_path / "store" / "list")
    lists = [tmp_path / "corpus" / folder / "train.jsonl" for folder in ("list", "other")]
    index(*lists, out=tmp_path / "index")
    opened = open_index(str(tmp_path / "index"))
    assert [Path(opened.name(place)).resolve() for place in range(2)] == [
        tmp_path / "store" / "audio" / "a.wav",
        tmp_path / "corpus" / "other" / "b.wav",
    ]
    assert [len(opened.read(place)) for place in range(2)] == [32_000, 64_000]
    # Paths below the root stay relative, so a corpus can move.
    assert not any(path.as_py().startswith(b"/") for path in read_table(tmp_path / "index" / "files.arrow")["path"])


def test_lists_in_several_folders_may_name_their_audio_alike(tmp_path: Path) -> None:
    for number, language in enumerate(("en", "de")):
        write(tmp_path / language / "clips" / "0.wav", 1.5 + number)
        (tmp_path / language / "manifest.jsonl").write_text(json.dumps({"path": "clips/0.wav", "text": language}))
    index(tmp_path / "en", tmp_path / "de", out=tmp_path / "index")
    assert [row["id"] for row in labels(tmp_path / "index")] == ["en/clips/0", "de/clips/0"]
    assert open_index(str(tmp_path / "index")).length.tolist() == [24_000, 40_000]


def test_an_audiofolder_may_have_a_list_per_split(tmp_path: Path) -> None:
    for number, split in enumerate(("test", "train")):
        write(tmp_path / "set" / split / "0.wav", seed=number)
        (tmp_path / "set" / split / "metadata.csv").write_text("file_name,transcription\n0.wav,hello\n")
    index(tmp_path / "set", out=tmp_path / "index")
    assert [(row["id"], row["split"]) for row in labels(tmp_path / "index")] == [
        ("test/0", "test"),
        ("train/0", "train"),
    ]


def test_librispeech_with_a_manifest_in_it_is_read_as_librispeech(tmp_path: Path) -> None:
    folder = tmp_path / "LibriSpeech"
    write(folder / "dev-clean" / "7" / "8" / "7-8-0000.flac")
    (folder / "SPEAKERS.TXT").write_text("7 | M | dev-clean | 1.0 | Ann\n")
    (folder / "manifest.jsonl").write_text(json.dumps({"path": "dev-clean/7/8/7-8-0000.flac", "spk": "other"}))
    index(folder, out=tmp_path / "index")
    assert [(row["speaker"], row["sex"]) for row in labels(tmp_path / "index")] == [("7", "M")]


def test_labels_in_tars_have_the_names_of_those_in_lists(tmp_path: Path) -> None:
    label = tmp_path / "a.json"
    label.write_text(json.dumps({"utt_id": "u1", "spk": "s1", "gender": "F", "transcript": "hello"}))
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        tar.add(write(tmp_path / "a.wav"), "a.wav")
        tar.add(label, "a.json")
    index(tmp_path / "set.tar", out=tmp_path / "index")
    assert labels(tmp_path / "index") == [{"id": "u1", "speaker": "s1", "sex": "F", "chapter": "", "text": "hello"}]


def test_folders_in_a_tar_may_have_dots_in_their_names(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for seed, name in enumerate(("a", "b.first")):
            tar.add(write(tmp_path / f"{name}.wav", seed=seed), f"cv-17.0/en/{name}.wav")
        text = tmp_path / "b.txt"
        text.write_text("hello")
        tar.add(text, "cv-17.0/en/b.txt")
    index(tmp_path / "set.tar", out=tmp_path / "index")
    # WebDataset's keys: everything up to the first dot after the last slash.
    assert [(row["id"], row["text"]) for row in labels(tmp_path / "index")] == [
        ("set/cv-17.0/en/a", ""),
        ("set/cv-17.0/en/b", "hello"),
    ]


def test_tars_of_audio_are_indexed_and_names_that_lead_out_are_refused(tmp_path: Path) -> None:
    wav = write(tmp_path / "loose" / "a.wav")
    text = tmp_path / "loose" / "a.txt"
    text.write_text("hello\n")
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for name in ("good.wav", "/etc/absolute.wav", "../up.wav", "a/../../b.wav"):
            member = tarfile.TarInfo(name)
            member.size = wav.stat().st_size
            with wav.open("rb") as file:
                tar.addfile(member, file)
        tar.add(text, "good.txt")
        link = tarfile.TarInfo("link.wav")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        link.type, link.name = tarfile.LNKTYPE, "hard.wav"
        tar.addfile(link)
        sparse = tarfile.TarInfo("sparse.wav")  # its bytes are a part of the file
        sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 512
        tar.addfile(sparse, io.BytesIO(bytes(512)))
    index(tmp_path / "set.tar", out=tmp_path / "index")
    assert [(row["id"], row["text"]) for row in labels(tmp_path / "index")] == [("set/good", "hello")]
    reasons = refused(tmp_path / "index")
    assert "member link.wav is a link to /etc/passwd" in reasons
    assert "member hard.wav is a link to /etc/passwd" in reasons
    assert "member sparse.wav is sparse" in reasons
    assert reasons.count("has a path outside the archive") == 3
    opened = open_index(str(tmp_path / "index"))
    assert np.array_equal(opened.read(0), scan_folder(tmp_path / "loose", 15.0).read(0))
