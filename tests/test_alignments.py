"""Alignments of phones and words: TextGrids, CTM and tables, and probes with them on any corpus."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import babble
from test_layouts import kaldi

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.alignments import read_alignments
from sjepa.evaluate.labelled import corpus_name, read_labelled, read_labels_file

LONG = '''File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1.0
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "ann - words"
        xmin = 0
        xmax = 1.0
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 0.4
            text = ""
        intervals [2]:
            xmin = 0.4
            xmax = 1.0
            text = "3 ""ja"""
    item [2]:
        class = "IntervalTier"
        name = "ann - phones"
        xmin = 0
        xmax = 1.0
        intervals: size = 3
        intervals [1]:
            xmin = 0
            xmax = 0.4
            text = ""
        intervals [2]:
            xmin = 0.4
            xmax = 0.7
            text = "j"
        intervals [3]:
            xmin = 0.7
            xmax = 1.0
            text = "aː"
'''
SHORT = '"ooTextFile"\n"TextGrid"\n\n0\n1\n<exists>\n2\n"TextTier"\n"marks"\n0\n1\n1\n0.5\n"!"\n'
SHORT += '"IntervalTier"\n"phones"\n0\n1\n2\n0\n0.5\n"a"\n0.5\n1\n"b"\n'
PHONES = [(0.0, 0.4, "SIL"), (0.4, 0.7, "j"), (0.7, 1.0, "aː")]


def test_textgrids_are_read_in_both_formats_and_encodings(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "u1.TextGrid").write_text(LONG, encoding="utf-8")
    (tmp_path / "u2.TextGrid").write_text(LONG, encoding="utf-16")
    (tmp_path / "u3.TextGrid").write_text(SHORT)
    found = read_alignments(tmp_path)
    assert set(found) == {"ann/u1", "u2", "u3"}
    for name in ("ann/u1", "u2"):
        assert found[name].phones == PHONES
        assert found[name].words == [(0.4, 1.0, '3 "ja"')]
    assert found["u3"].phones == [(0.0, 0.5, "a"), (0.5, 1.0, "b")]


def test_ctm_files_and_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / "phones.ctm").write_text(";; made by hand\nu1 1 0.40 0.30 j 0.9\nu1 1 0.70 0.30 aː\n", encoding="utf-8")
    (tmp_path / "words.ctm").write_text("u1 1 0.4 0.6 ja\n")
    (tmp_path / "more.csv").write_text("utterance,start,end,phone\nu2,0.4,0.7,j\nu2,0.7,1.0,aː\n", encoding="utf-8")
    (tmp_path / "more.jsonl").write_text('{"id": "u3", "start": 0.4, "duration": 0.6, "word": "ja"}\n')
    (tmp_path / "speakers.csv").write_text("speaker,age\nann,30\n")
    found = read_alignments(tmp_path)
    for name in ("u1", "u2"):
        assert [label for _, _, label in found[name].phones] == [label for _, _, label in PHONES]
        times, wanted = ([segment[:2] for segment in segments] for segments in (found[name].phones, PHONES))
        np.testing.assert_allclose(times, wanted)
    assert found["u1"].words == [(0.4, 1.0, "ja")]
    assert found["u3"].words == [(0.4, 1.0, "ja")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.TextGrid", "hello", r"a\.TextGrid is not a readable TextGrid \(it ends too early\)"),
        ("a.TextGrid", LONG[:300], r"a\.TextGrid is not a readable TextGrid \(it ends too early\)"),
        ("a.TextGrid", '"x" "y"', r"a\.TextGrid is not a readable TextGrid \(it has no TextGrid header\)"),
        ("a.TextGrid", LONG.replace("phones", "x").replace("words", "y"), "no tier is called phones or words"),
        ("a.ctm", "u1 1 0.4 x j\n", r"a\.ctm line 1: not UTTERANCE CHANNEL START DURATION LABEL: u1 1 0\.4 x j"),
        ("a.csv", "utterance,start,phone\nu,0.1,a\n", r"a\.csv line 2: needs an utterance, a start, an end"),
        ("a.csv", "utterance,start,end,phone\nu,0.1,soon,a\n", r"a\.csv line 2: start or end is not a number"),
        ("a.jsonl", "{", r"a\.jsonl line 1: not valid JSON"),
        ("a.ctm", "u 1 0 1 a\nu 1 0.5 1 b\n", "the alignment of u overlaps at 0.5 s: 'b' begins before 1 s"),
        ("a.txt", "nothing", "has no alignments: looked for .TextGrid"),
    ],
)
def test_alignments_that_cannot_be_read_are_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_alignments(tmp_path)
    with pytest.raises(UserError, match=r"there is no .*gone: --alignments is a folder"):
        read_alignments(tmp_path / "gone")


def test_alignments_of_a_recording_are_cut_to_its_utterances(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", babble(2.0, 0), 16_000)
    data = kaldi(tmp_path / "data", wav_scp="long ../long.wav\n", segments="u1 long 0.5 1.5\n", text="u1 ja\n")
    (tmp_path / "aligned").mkdir()
    (tmp_path / "aligned" / "long.ctm").write_text("long 1 0.2 0.6 a\nlong 1 0.8 0.4 b\n")
    (item,) = read_labelled(data, alignments=tmp_path / "aligned")
    assert [label for _, _, label in item.segments] == ["a", "b"]
    np.testing.assert_allclose([item.segments[0][:2], item.segments[1][:2]], [(0.0, 0.3), (0.3, 0.7)])
    assert corpus_name(data, "dev-clean") == "labelled speech (data)"
    (tmp_path / "aligned" / "long.ctm").write_text("other 1 0.2 0.6 a\n")
    with pytest.raises(
        UserError, match="has no alignment for any of the 1 utterances: it has 'other', the corpus has 'u1'"
    ):
        read_labelled(data, alignments=tmp_path / "aligned")


def test_labels_of_a_corpus_are_completed_as_alignments_are(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", babble(2.0, 0), 16_000)
    phones = [[1.5, 1.8, "B"], [0.5, 1.0, "AA"]]
    (tmp_path / "labels.jsonl").write_text(json.dumps({"path": "a.wav", "phones": phones}) + "\n")
    (found,) = read_labels_file(tmp_path)
    assert found.segments == [(0.0, 0.5, "SIL"), (0.5, 1.0, "AA"), (1.0, 1.5, "SIL"), (1.5, 1.8, "B")]


def test_audio_after_the_last_segment_is_silence(tmp_path: Path) -> None:
    """CTM files leave out silence, also at the end. An alignment with 30 ms frames ends shortly before the audio."""
    data = kaldi(tmp_path / "data", wav_scp="u1 ../a.wav\nu2 ../a.wav\n")
    soundfile.write(tmp_path / "a.wav", babble(2.0, 0), 16_000)
    (tmp_path / "phones.ctm").write_text("u1 1 0.5 1.0 a\nu2 1 0.5 1.46 a\n")
    early, whole = (item.frame_phones(99).tolist() for item in read_labelled(data, alignments=tmp_path / "phones.ctm"))
    assert early == 25 * ["SIL"] + 52 * ["a"] + 22 * ["SIL"]
    assert whole == 25 * ["SIL"] + 74 * ["a"]


def test_speaker_0_is_a_speaker(tmp_path: Path) -> None:
    rows = [{"path": "a.wav", "speaker": 0, "gender": "F", "text": "ja"}, {"path": "a.wav", "id": 0, "speaker": None}]
    soundfile.write(tmp_path / "a.wav", babble(1.0, 0), 16_000)
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    zero, unknown = read_labels_file(tmp_path)
    assert (zero.speaker, zero.gender, zero.utterance.label, zero.utterance.name) == ("0", "F", "ja", "a")
    assert (unknown.speaker, unknown.gender, unknown.utterance.label, unknown.utterance.name) == ("", "", "", "0")


def test_probes_read_phones_of_any_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    lines: dict[str, str] = {"wav_scp": "", "utt2spk": ""}
    (tmp_path / "aligned").mkdir()
    for number in range(9):
        tone = 0.1 * np.sin(2 * np.pi * (300 if number % 2 else 900) * np.arange(8_000) / 16_000)
        noise = 0.05 * np.random.default_rng(number).standard_normal(8_000)
        soundfile.write(tmp_path / f"{number}.wav", np.concatenate([tone, noise]), 16_000)
        lines["wav_scp"] += f"u{number} {number}.wav\n"
        lines["utt2spk"] += f"u{number} s{number % 3}\n"
        if number != 4:
            aligned = f"u{number} 1 0.0 0.5 {'ŋ' if number % 2 else 'ɲ'}\nu{number} 1 0.5 0.5 s\n"
            (tmp_path / "aligned" / f"{number}.ctm").write_text(aligned, encoding="utf-8")
    kaldi(tmp_path, **lines)
    command = ["probe", "--encoder", "logmel", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    dispatch([*command, "--alignments", str(tmp_path / "aligned")])
    assert "1 of 9 utterances have no alignment and are left out" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (scores,) = results["layers"].values()
    assert scores["phoneme linear, held-out speakers"]["mean"] > 90
    assert results["data"]["phones"] == 3
    units = ["units", "--encoder", "logmel", "--units", "kmeans", "--clusters", "3", "--data", str(tmp_path)]
    dispatch([*units, "--alignments", str(tmp_path / "aligned"), "--out", str(tmp_path / "units")])
    assert json.loads((tmp_path / "units" / "results.json").read_text())["metrics"]["pnmi"] > 0.5
