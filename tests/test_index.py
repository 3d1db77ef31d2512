"""Indexing: folders become columns, an interrupted index continues, and unusable audio is refused with a reason."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import babble
from small_indexes import index, labels, refused, write
from test_cli import sjepa

from sjepa import UserError
from sjepa.cli import dispatch
from sjepa.data import build
from sjepa.data.build import summarise_index
from sjepa.data.corpus import Corpus, scan_folder
from sjepa.data.index import open_index
from sjepa.data.opening import open_corpus


def test_an_index_of_a_folder_reads_the_same_audio_as_the_folder(corpus: Path, tmp_path: Path) -> None:
    facts = index(corpus, out=tmp_path / "index")
    indexed, plain = open_index(str(tmp_path / "index")), scan_folder(corpus, 15.0)
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


def test_sources_without_audio_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match=r"no usable audio: .*: no audio in it; looked for \.flac, \.mp3"):
        index(tmp_path / "in", out=tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_the_summary_of_one_file_is_in_the_singular(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.wav")
    lines = summarise_index(index(tmp_path / "in", out=tmp_path / "index"))
    assert lines[0].endswith(" hours in 1 utterance of 1 file")
    done = sjepa("shard", tmp_path / "index", "--out", tmp_path / "shards", "--workers", 1)
    assert "1 utterance, 1 shard, " in done.stdout


def test_audio_that_was_moved_is_reported_as_missing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "in" / f"{name}.wav")
    index(tmp_path / "in", out=tmp_path / "index")
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"a\.wav: there is no such file; was it moved\? \(and 1 more\)"):
        open_corpus(tmp_path / "index", 15.0, "memory", 1.0)


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
    assert facts["refused"] == 7
    for name in ("empty.wav", "text.flac", "none.wav", "short.wav", "cut.flac", "cut.mp3", "lying.wav"):
        assert name in reasons
    assert [row["id"] for row in labels(tmp_path / "index")] == ["good"]


def test_utterances_with_the_same_id_are_renamed_and_the_same_audio_is_refused(tmp_path: Path) -> None:
    for name in ("same.flac", "same.ogg", "same.wav", "same~2.wav"):
        write(tmp_path / "a" / name)
    facts = index(tmp_path / "a", tmp_path / "a", out=tmp_path / "index")  # same~2 is the id of a file already
    opened = open_index(str(tmp_path / "index"))
    assert {row["id"]: Path(opened.name(place)).name for place, row in enumerate(labels(tmp_path / "index"))} == {
        "same": "same.flac",
        "same~3": "same.ogg",
        "same~4": "same.wav",
        "same~2": "same~2.wav",
    }
    assert facts["refused"] == 4
    assert "same: an earlier utterance has the same id and audio\n" in refused(tmp_path / "index")


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
    plain = open_corpus(folder, 15.0, "memory", 1.0)
    assert "caf\\xe9.wav" in plain.name(0)
    plain.fingerprint()


def test_a_manifest_names_files_whose_names_are_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    soundfile.write(os.fsencode(folder) + b"/caf\xe9.wav", babble(1.5, 0), 16_000)
    (folder / "manifest.jsonl").write_bytes(b'{"path": "caf\xe9.wav"}\n')
    assert index(folder, out=tmp_path / "index")["utterances"] == 1
    assert refused(tmp_path / "index") == ""


def columns_of(*paths: str) -> Corpus:
    """A corpus of a second per file."""
    count = len(paths)
    return Corpus(list(paths), np.arange(count), np.zeros(count, dtype=int), np.full(count, 16_000))


def test_the_fingerprint_of_a_corpus_has_the_names_of_its_files_but_not_their_folder() -> None:
    """The stored values are in run folders: with others, no run would continue on its corpus."""
    assert columns_of("/a/x.wav", "/a/b/y.wav").fingerprint() == "63a182a72b2ef2b8"
    assert columns_of("/moved/x.wav", "/moved/b/y.wav").fingerprint() == "63a182a72b2ef2b8"
    assert columns_of("/a/b/x.wav", "/a/b/y.wav").fingerprint() == "676b9910b0b27ef4"
    assert columns_of("/a/one.wav").fingerprint() == columns_of("/moved/one.wav").fingerprint()
    assert columns_of("/a/one.wav").fingerprint() != columns_of("/a/renamed.wav").fingerprint()


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


def test_an_empty_folder_counts_as_no_audio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no audio in it"):
        dispatch(["index", str(tmp_path / "empty"), "--out", str(tmp_path / "index")])
    shown = capsys.readouterr().err.splitlines()
    assert {line.split(" 0:")[0] for line in shown} == {"Looking for audio 0/?", "Reading headers 0/0"}


def test_audio_of_other_types_is_counted_once_and_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    soundfile.write(folder / "a.wav", babble(1.0, 0), 16_000)
    for name in ("b.m4a", "c.M4A", "d.webm", "e.aiff", "cover.jpg"):
        (folder / name).touch()
    others = f"{folder}: 1 .aiff file, 2 .m4a files, 1 .webm file cannot be read: convert to wav or flac first"
    assert index(folder, out=tmp_path / "index")["refused"] == 1
    assert refused(tmp_path / "index").startswith(others)
    (reason,) = scan_folder(folder, 15.0).refused
    assert reason.startswith(others)
    (folder / "a.wav").unlink()
    with pytest.raises(UserError, match=f"^no audio in {folder}: {others}"):
        scan_folder(folder, 15.0)


def test_missing_and_empty_sources_are_one_clear_line(tmp_path: Path, corpus: Path) -> None:
    def attempt(*arguments: object) -> str:
        done = sjepa("index", *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    missing = attempt(tmp_path / "missing", "--out", tmp_path / "index")
    assert missing == f"sjepa: there is no file or folder {tmp_path / 'missing'}"
    assert not (tmp_path / "index").exists()
    (tmp_path / "empty").mkdir()
    assert "no audio in it; looked for .flac" in attempt(tmp_path / "empty", "--out", tmp_path / "index")
    assert "no wav.scp in it" in attempt(corpus, "--layout", "kaldi", "--out", tmp_path / "index")
    (tmp_path / "notes.doc").write_text("words")
    assert "is not a list: use" in attempt(tmp_path / "notes.doc", "--out", tmp_path / "index2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("words")
    assert "is not empty and is not an index" in attempt(corpus, "--out", tmp_path / "mine")
    assert "is a URL: write to a folder" in attempt(corpus, "--out", "s3://bucket/index")


def test_an_index_that_was_interrupted_while_its_parts_were_merged_continues(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("sjepa.data.index.summarise_lengths", stop)
        with pytest.raises(KeyboardInterrupt):
            index(corpus, out=tmp_path / "index")
    left = {path.name for path in (tmp_path / "index").iterdir()}
    assert left == {"audio.arrow", "files.arrow", "labels.arrow", "refused.txt", "parts"}
    assert index(corpus, out=tmp_path / "index")["utterances"] == 12


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
        f"print(len(open_corpus({str(corpus)!r}, 2.0, 'memory', 1.0)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "12", done.stderr
