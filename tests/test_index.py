"""Indexing: folders, known layouts and lists become columns; unusable audio is refused with a reason."""

import csv
import gzip
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import soundfile
from conftest import babble
from test_cli import sjepa

from sjepa import UserError
from sjepa.audio.io import read_audio
from sjepa.data import build
from sjepa.data.build import build_index, summarise_index
from sjepa.data.corpus import scan_folder
from sjepa.data.index import open_index, read_labels
from sjepa.data.layouts import Layout
from sjepa.data.opening import open_corpus
from sjepa.data.silence import cut_at_silences, join_voice


def index(
    *sources: Path, out: Path, layout: Layout = "auto", seconds: float = 15.0, cut: bool = False
) -> dict[str, Any]:
    names = [str(source) for source in sources]
    return build_index(names, out, layout=layout, max_seconds=seconds, cut_transcribed=cut, show=False)


def refused(folder: Path) -> str:
    return (folder / "refused.txt").read_text()


def labels(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = read_labels(str(folder)).to_pylist()
    return rows


def write(path: Path, seconds: float = 1.5, seed: int = 0, rate: int = 16_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, babble(seconds, seed), rate)
    return path


def test_an_index_of_a_folder_reads_the_same_audio_as_the_folder(corpus: Path, tmp_path: Path) -> None:
    facts = index(corpus, out=tmp_path / "index")
    indexed, plain = open_index(str(tmp_path / "index")), scan_folder(corpus, 15.0, show=False)
    assert len(indexed) == len(plain) == facts["utterances"] == 12
    assert indexed.hours == pytest.approx(plain.hours)
    for utterance in range(12):
        assert np.array_equal(indexed.read(utterance, 300, 4000), plain.read(utterance, 300, 4000))
        assert indexed.name(utterance) == plain.name(utterance)
    assert [row["id"] for row in labels(tmp_path / "index")] == [f"{number:02d}" for number in range(12)]
    assert "12 utterances" in summarise_index(facts)[0]


def test_every_format_rate_and_channel_count_is_taken(tmp_path: Path) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 300 * np.arange(48_000) / 16_000)
    soundfile.write(tmp_path / "a.wav", tone, 16_000)
    soundfile.write(tmp_path / "b.flac", np.stack([tone, tone], 1), 16_000)
    soundfile.write(tmp_path / "c.ogg", tone, 16_000)
    soundfile.write(tmp_path / "d.opus", tone, 16_000, format="OGG", subtype="OPUS")
    soundfile.write(tmp_path / "e.mp3", tone, 16_000)
    soundfile.write(tmp_path / "f.wav", tone, 44_100)
    index(tmp_path, out=tmp_path / "index")
    opened = open_index(str(tmp_path / "index"))
    assert len(opened) == 6
    expected = [48_000] * 5 + [48_000 * 16_000 // 44_100]
    assert opened.length == pytest.approx(expected, abs=2)
    assert all(np.abs(opened.read(utterance)).max() > 8_000 for utterance in range(6))


def test_the_columns_are_mapped_not_loaded(corpus: Path, tmp_path: Path) -> None:
    index(corpus, out=tmp_path / "index")
    opened = open_index(str(tmp_path / "index"))
    for column in (opened.file, opened.start, opened.length, opened.byte_offset, opened.byte_size):
        assert column is not None
        assert not column.flags.owndata
        assert not column.flags.writeable


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


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.0, 15.0])
def test_a_recording_just_longer_than_the_limit_is_cut_too(seconds: float) -> None:
    limit = round(16_000 * seconds)
    for samples in (limit + 1, limit + 100, limit + 5000):
        stretches = cut_at_silences(np.ones(samples // 160), 0, samples, limit)
        assert sum(length for _, length in stretches) == samples
        assert all(0 < length <= limit for _, length in stretches)


def test_cuts_fall_into_silence() -> None:
    power = np.ones(6000)  # a minute of 10 ms
    pauses = (1000, 1730, 2600, 3900, 4700, 5500)
    for pause in pauses:
        power[pause : pause + 40] = 1e-6
    stretches = cut_at_silences(power, 0, 960_000, 240_000)
    assert sum(length for _, length in stretches) == 960_000
    assert max(length for _, length in stretches) <= 240_000
    for start, _ in stretches[1:]:
        assert any(pause <= start // 160 <= pause + 40 for pause in pauses)


def test_digital_silence_is_left_out_and_voice_beyond_the_end_is_clipped() -> None:
    power = np.ones(4500)
    power[1500:3000] = 0.0
    stretches = cut_at_silences(power, 0, 720_000, 240_000)
    assert all(power[start // 160 : (start + length) // 160].any() for start, length in stretches)
    assert join_voice([(1.0, 2.0), (5.0, 99.0), (120.0, 130.0)], 160_000, 240_000) == [
        (16_000, 16_000),
        (80_000, 80_000),
    ]


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
    assert index(folder, out=tmp_path / "plain", layout="folder")["speakers"] == 0
    with pytest.raises(UserError, match="audio is not a list"):
        index(folder / "audio", out=tmp_path / "none", layout="manifest")


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


def test_sources_without_audio_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="no usable audio: the sources hold none"):
        index(tmp_path / "in", out=tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_audio_that_was_moved_is_reported_as_missing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "in" / f"{name}.wav")
    index(tmp_path / "in", out=tmp_path / "index")
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"a\.wav: there is no such file; was it moved\? \(and 1 more like it\)"):
        open_corpus(tmp_path / "index", 15.0, "memory", 1.0, show=False)


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
    index(tmp_path / "set.tar", out=tmp_path / "index")
    assert [(row["id"], row["text"]) for row in labels(tmp_path / "index")] == [("set/good", "hello")]
    reasons = refused(tmp_path / "index")
    assert reasons.count("has a path outside the archive") == 3
    opened = open_index(str(tmp_path / "index"))
    assert np.array_equal(opened.read(0), scan_folder(tmp_path / "loose", 15.0, show=False).read(0))


def test_unusable_files_are_refused_with_their_reasons(tmp_path: Path) -> None:
    write(tmp_path / "in" / "good.wav")
    (tmp_path / "in" / "empty.wav").write_bytes(b"")
    (tmp_path / "in" / "text.flac").write_text("words")
    soundfile.write(tmp_path / "in" / "none.wav", np.zeros(0), 16_000)
    soundfile.write(tmp_path / "in" / "short.wav", np.ones(300) * 0.1, 16_000)
    for ending in ("flac", "mp3"):  # their headers promise the whole
        whole = write(tmp_path / f"whole.{ending}", 4.0).read_bytes()
        (tmp_path / "in" / f"cut.{ending}").write_bytes(whole[: len(whole) // 2])
    lying = bytearray(write(tmp_path / "whole.wav", 2.0).read_bytes())
    lying[40:44] = (16_000_000).to_bytes(4, "little")  # the data chunk claims 500 s
    (tmp_path / "in" / "lying.wav").write_bytes(lying)
    facts = index(tmp_path / "in", out=tmp_path / "index")
    reasons = refused(tmp_path / "index")
    assert facts["refused"] == 6
    for name in ("empty.wav", "text.flac", "none.wav", "short.wav", "cut.flac", "cut.mp3"):
        assert name in reasons
    opened = open_index(str(tmp_path / "index"))
    rows = [row["id"] for row in labels(tmp_path / "index")]
    assert rows == ["good", "lying"]
    assert opened.length[rows.index("lying")] == 32_000  # what there is, not what is claimed
    assert len(opened.read(rows.index("lying"))) == 32_000


def test_ids_that_come_twice_are_refused_the_second_time(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "same.wav", seed=len(folder))
    write(tmp_path / "a" / "same.flac")
    index(tmp_path / "a", tmp_path / "b", out=tmp_path / "index")
    assert [row["id"] for row in labels(tmp_path / "index")] == ["a/same", "b/same"]
    assert "a/same: an earlier utterance has the same id" in refused(tmp_path / "index")


def test_names_that_are_not_utf8_are_read_and_printed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    name = os.fsdecode(os.fsencode(folder) + b"/caf\xe9.wav")
    soundfile.write(os.fsencode(name), babble(1.5, 0), 16_000)
    with open(os.fsdecode(os.fsencode(folder) + b"/bad\xff.wav"), "w") as file:
        file.write("no audio")
    index(folder, out=tmp_path / "index")
    opened = open_index(str(tmp_path / "index"))
    assert len(opened) == 1
    assert len(opened.read(0)) == 24_000
    assert [row["id"] for row in labels(tmp_path / "index")] == ["caf\\xe9"]
    assert "bad\\xff.wav" in refused(tmp_path / "index")
    plain = open_corpus(folder, 15.0, "memory", 1.0, show=False)
    assert "caf\\xe9.wav" in plain.name(0)
    plain.fingerprint()


def test_links_that_loop_and_folders_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in" / "a.wav")
    write(tmp_path / "in" / "locked" / "b.wav")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    scandir = os.scandir

    def locked(path: Any) -> Any:  # as for another user's folder; chmod does not stop a test that runs as root
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    facts = index(tmp_path / "in", out=tmp_path / "index")
    assert facts["utterances"] == 1
    assert "locked: the folder cannot be read (Permission denied)" in refused(tmp_path / "index")


def test_missing_and_empty_sources_are_one_clear_line(tmp_path: Path, corpus: Path) -> None:
    def attempt(*arguments: object) -> str:
        done = sjepa("index", *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    assert "sjepa: there is no " in attempt(tmp_path / "missing", "--out", tmp_path / "index")
    assert not (tmp_path / "index").exists()
    (tmp_path / "empty").mkdir()
    assert "the sources hold none" in attempt(tmp_path / "empty", "--out", tmp_path / "index")
    (tmp_path / "notes.doc").write_text("words")
    assert "is not a list: use" in attempt(tmp_path / "notes.doc", "--out", tmp_path / "index2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("words")
    assert "is not empty and is not an index" in attempt(corpus, "--out", tmp_path / "mine")
    assert "is a URL: write to a folder" in attempt(corpus, "--out", "s3://bucket/index")


def test_a_missing_pyarrow_is_reported_before_any_header_is_read(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(build, "find_items", lambda *_: pytest.fail("sources were read"))
    with pytest.raises(UserError, match="an index needs pyarrow"):
        index(corpus, out=tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_an_interrupted_index_continues(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "PART", 4)
    opened = []
    read_header = build.read_header

    def counted(source: Any, name: str) -> Any:
        if len(opened) == 6:
            raise KeyboardInterrupt
        opened.append(name)
        return read_header(source, name)

    build.read_cached_header.cache_clear()
    monkeypatch.setattr(build, "read_header", counted)
    with pytest.raises(KeyboardInterrupt):
        index(corpus, out=tmp_path / "index")
    assert not (tmp_path / "index" / "index.json").exists()
    assert len(list((tmp_path / "index" / "parts").glob("*.arrow"))) == 1
    build.read_cached_header.cache_clear()
    monkeypatch.setattr(build, "read_header", lambda source, name: opened.append(name) or read_header(source, name))
    before = len(opened)
    assert index(corpus, out=tmp_path / "index")["utterances"] == 12
    assert len(opened) - before == 8  # not the four of the first part
    monkeypatch.setattr(build, "PART", 1024)
    index(corpus, out=tmp_path / "at-once")
    assert [row["id"] for row in labels(tmp_path / "index")] == [row["id"] for row in labels(tmp_path / "at-once")]
    index(corpus, out=tmp_path / "index")
    assert "already complete" in capsys.readouterr().out
    with pytest.raises(UserError, match="already holds another index"):
        index(corpus, out=tmp_path / "index", seconds=2.0)


def test_a_continued_index_reads_files_again_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PART", 2)
    files = [write(tmp_path / "in" / f"{name}.wav") for name in "abcdef"]
    whole = files[0].read_bytes()
    files[0].write_bytes(b"damaged")
    write_part = build.write_part
    written: list[Path] = []

    def stop_after_two(path: Path, *rest: Any) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        write_part(path, *rest)
        written.append(path)

    monkeypatch.setattr(build, "write_part", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        index(tmp_path / "in", out=tmp_path / "index")
    files[0].write_bytes(whole)
    monkeypatch.setattr(build, "write_part", lambda path, *rest: (written.append(path), write_part(path, *rest)))
    assert index(tmp_path / "in", out=tmp_path / "index")["utterances"] == 6
    assert not refused(tmp_path / "index")
    assert len(written) == 4  # the first part again and the third, but not the second


def test_damaged_indexes_are_refused_in_one_line(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "index"
    index(corpus, out=out)
    good = {path.name: path.read_bytes() for path in out.iterdir()}
    for name, content, words in (
        ("audio.arrow", good["audio.arrow"][:200], "audio.arrow is missing or damaged"),
        ("files.arrow", None, "files.arrow is missing or damaged"),
        ("index.json", b"{", "is not valid JSON"),
        ("index.json", b'{"format": "other"}', "is not an index that this version can read"),
        ("index.json", good["index.json"].replace(b'"utterances": 12', b'"utterances": 13'), "disagree"),
    ):
        (out / name).write_bytes(content) if content is not None else (out / name).unlink()
        with pytest.raises(UserError, match=words):
            open_index(str(out))
        (out / name).write_bytes(good[name])
    assert len(open_index(str(out))) == 12


def test_a_plain_folder_needs_neither_pyarrow_nor_fsspec(corpus: Path) -> None:
    program = (
        "import sys; sys.modules.update({'pyarrow': None, 'fsspec': None})\n"
        "from sjepa.data.opening import open_corpus\n"
        f"print(len(open_corpus({str(corpus)!r}, 2.0, 'memory', 1.0, show=False)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "12", done.stderr
