"""An utterance frame by frame: the JSON holds the audio and its analysis, and unusual files are handled."""

import base64
import io
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from analysed import corpus, findings, trained

from sjepa.analysis.calibration import hold_out_speakers
from sjepa.analysis.missing import analyse_missing
from sjepa.analysis.restored_run import RestoredRun
from sjepa.analysis.speech import CorpusLabels, excerpt_segments, find_utterances, label_file, merge_labels, read_speech
from sjepa.analysis.style import file_name, load_findings
from sjepa.analysis.utterance import analyse_utterance, draw_utterance, file_stem, mel_ticks, spectrogram_image
from sjepa.audio.io import to_int16
from sjepa.audio.mfcc import log_mel, mel_filters
from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.labelled import read_labelled
from sjepa.runs.folder import RunFolder

HOSTILE = "$x^2 <script>alert(1)</script> 語é.wav".replace("/", "∕")


@pytest.fixture(scope="module")
def restored() -> RestoredRun:
    return RestoredRun(trained())


def analysed(run: RestoredRun, path: Path, seconds: float = 20.0, start: float = 0.0) -> dict[str, object]:
    found = analyse_utterance(run, read_speech(label_file(path, []), start, seconds))
    return json.loads(json.dumps(found, allow_nan=False))


def write(path: Path, samples: np.ndarray) -> Path:
    soundfile.write(path, samples.astype(np.float32), 16_000)
    return path


def test_what_is_kept_is_the_sound_the_spectrogram_and_the_strongest_posteriors(restored: RestoredRun) -> None:
    (item,) = find_utterances(corpus(), [], 1, "")
    speech = read_speech(item, 0.0, 20.0)
    found = analyse_utterance(restored, speech)
    decoded, rate = soundfile.read(io.BytesIO(base64.b64decode(found["audio"])), dtype="int16")
    assert rate == 16_000
    np.testing.assert_array_equal(decoded, to_int16(speech.samples))
    energies = log_mel(torch.from_numpy(speech.samples)[None], 80, 160)[0].numpy()
    scaled = np.clip((energies - energies.max()) / 12 + 1, 0, 1) * 255
    assert np.abs(spectrogram_image(found).T - scaled).max() <= 0.51
    p = torch.cat([piece.masked for piece in restored(speech.samples)]).numpy()
    order = np.argsort(-p, axis=1, kind="stable")[:, :3]
    np.testing.assert_allclose(found["masked"]["posteriors"], np.take_along_axis(p, order, 1), atol=1e-4)
    assert [len(found[part]["entropy"]) for part in ("visible", "masked", "target")] == [len(p)] * 3
    assert [word for _, _, word in found["words"]] == ["first", "<i>second</i>"]
    assert len(found["phones"]) == 10


def test_labels_are_cut_to_the_stretch() -> None:
    (item,) = find_utterances(corpus(), [], 1, "")
    speech = read_speech(item, 0.3, 0.5)
    assert speech.words == ((0.0, 0.18, "first"), (0.3, 0.5, "<i>second</i>"))
    assert speech.phones[0][:2] == (0.0, 0.06)
    assert len(speech.samples) == 8000
    assert excerpt_segments([(0.0, 1.0, "a"), (2.0, 3.0, "b")], 1.0, 1.0) == ()


def test_labels_at_100_a_second_become_segments() -> None:
    assert merge_labels(["SIL", "SIL", "AA", "B", "B"]) == [(0.0, 0.02, "SIL"), (0.02, 0.03, "AA"), (0.03, 0.05, "B")]


def test_frequencies_are_marked_at_the_band_that_holds_them() -> None:
    filters = mel_filters(80, torch.device("cpu"))
    for hertz, place in zip((500, 1000, 2000, 4000), mel_ticks([500, 1000, 2000, 4000]), strict=True):
        strongest = int(filters[round(hertz * 512 / 16_000)].argmax())
        assert abs(place - (strongest + 0.5)) < 1.6


def test_of_a_two_hour_file_only_the_stretch_is_read(
    restored: RestoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, size = tmp_path / "hours.wav", 2 * 3600 * 32_000
    riff = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16, b"data", size
    )
    with path.open("wb") as file:
        file.write(riff)
        file.truncate(44 + size)  # a hole that reads as zeros
        file.seek(44 + 3600 * 32_000)
        file.write(to_int16(0.1 * np.random.default_rng(0).normal(size=64_000)).tobytes())
    found = analysed(restored, path, seconds=4.0, start=3600.0)
    assert (found["seconds"], found["start"], found["file_seconds"]) == (4.0, 3600.0, 7200.0)
    assert "7,200 seconds long: using 3600 to 3604 s" in capsys.readouterr().out
    with pytest.raises(UserError, match="seconds long"):
        read_speech(label_file(path, []), 7200.0, 4.0)


def test_silence_and_hostile_names_are_drawn(
    restored: RestoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    found = analysed(restored, write(tmp_path / HOSTILE.replace("/", "_"), np.zeros(16_000)))
    assert "silence, every sample is zero" in capsys.readouterr().out
    assert not spectrogram_image(found).any()
    draw_utterance(found, tmp_path / "silent")
    assert (tmp_path / "silent.png").stat().st_size > 1000
    assert "<script>" not in (tmp_path / "silent.svg").read_text()


def test_names_become_names_of_files() -> None:
    assert file_name("a/b c<d>語.wav") == "a_b_c_d_語.wav"
    assert file_name("../..") == "unnamed"
    long, longer = (file_name("x" * count) for count in (300, 301))
    assert len(long) == len(longer) == 80
    assert long != longer


def test_what_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too short"):
        read_speech(label_file(write(tmp_path / "short.wav", np.ones(100)), []), 0.0, 20.0)
    with pytest.raises(UserError, match="no utterance given"):
        find_utterances(None, [], 3, "")
    with pytest.raises(UserError, match="there is no file"):
        find_utterances(None, [tmp_path / "nothing.wav"], 3, "")
    with pytest.raises(UserError, match="there is no folder"):
        find_utterances(tmp_path / "nowhere", [], 3, "")
    (tmp_path / "empty").mkdir()
    file = tmp_path / "file.wav"
    file.touch()
    with pytest.raises(UserError, match="give files without --data"):
        dispatch(["analyze", "utterance", str(tmp_path), "--data", str(file)])
    file.unlink()
    with pytest.raises(UserError, match="no audio in"):
        find_utterances(tmp_path / "empty", [], 3, "")


def test_a_damaged_file_of_a_sample_is_left_out_and_a_named_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    run, data = shutil.copytree(trained(), tmp_path / "run"), shutil.copytree(corpus(), tmp_path / "corpus")
    shutil.rmtree(run / "analysis", ignore_errors=True)
    damaged = data / "speaker0-00.flac"  # the first of every sample
    damaged.write_bytes(damaged.read_bytes()[:2000])
    analyse_missing(run, CorpusLabels(data, ""), utterances=4, sampled=8)
    assert len(list((run / "analysis").glob("utterance-*.json"))) == 3
    assert load_findings(run / "analysis" / "clusters.json")["phones"]["utterances"] == 7
    assert f"left out: {damaged}: " in capsys.readouterr().out
    call = ["analyze", "utterance", str(run), "--out", str(tmp_path / "out"), "--count", "2"]
    dispatch([*call, "--data", str(data)])
    assert len(list((tmp_path / "out").glob("*.json"))) == 1
    with pytest.raises(UserError, match=r"speaker0-00\.flac: .*repair this file"):
        dispatch([*call, str(damaged)])
    with pytest.raises(UserError, match="no utterance of the sample could be used"):
        dispatch([*call, "--data", str(data), "--start", "5", "--force"])


def test_a_page_is_made_again_for_other_audio_or_a_later_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = shutil.copytree(trained(), tmp_path / "run"), shutil.copytree(corpus(), tmp_path / "other")
    shutil.rmtree(run / "analysis", ignore_errors=True)

    def make(data: Path, utterances: int = 2) -> dict[str, int]:
        """Return when each file of the analysis was written."""
        analyse_missing(run, CorpusLabels(data, ""), utterances=utterances, sampled=4)
        return {path.name: path.stat().st_mtime_ns for path in (run / "analysis").iterdir()}

    first = make(corpus())
    assert len(first) == 4  # two utterances, entropies, clusters
    assert make(corpus()) == first
    assert len(make(corpus(), utterances=3)) == 5
    (other / "labels.jsonl").unlink()
    of_other = make(other)
    assert len(of_other) == 3  # clusters need phones, and those of the first corpus are gone
    assert not set(of_other.items()) & set(first.items())
    monkeypatch.setattr(RunFolder, "step", 10**6)
    later = make(other)
    assert not set(later.items()) & set(of_other.items())
    dispatch(["analyze", "utterance", str(run), "--data", str(other), "--count", "1", "--force"])
    make(corpus())
    (kept,) = (run / "analysis").glob("utterance-*.json")
    assert is_by_user(kept)


def is_by_user(findings: Path) -> bool:
    return "made_by" not in load_findings(findings)


def test_words_of_the_figure_come_from_alignments(tmp_path: Path) -> None:
    """Instead of the corpus's own; times are cut to the stretch that is shown."""
    rows = ["utterance,start,end,word", "speaker1-01,0.1,0.6,hello", "speaker1-01,0.7,1.1,world"]
    (tmp_path / "words.csv").write_text("\n".join(rows) + "\n")
    (item,) = find_utterances(corpus(), [], 3, "", tmp_path / "words.csv")
    assert item.utterance.path.stem == "speaker1-01"
    speech = read_speech(item, 0.5, 0.6)
    assert [word for word in speech.words if word[2]] == [(0.0, 0.1, "hello"), (0.2, 0.6, "world")]
    with pytest.raises(UserError, match="--alignments needs --data"):
        find_utterances(None, [item.utterance.path], 3, "", tmp_path / "words.csv")


def test_segments_of_one_recording_are_separate_utterances(tmp_path: Path) -> None:
    samples = 0.1 * np.random.default_rng(0).normal(size=64_000)
    write(tmp_path / "long.wav", samples)
    (tmp_path / "wav.scp").write_text("long long.wav\n")
    (tmp_path / "segments").write_text("u1 long 0.5 1.5\nu2 long 2 4\n")
    (tmp_path / "text").write_text("u1 one\nu2 two\n")
    (tmp_path / "utt2spk").write_text("u1 ann\nu2 bob\n")
    chosen = find_utterances(tmp_path, [], 3, "dev-clean")
    spoken = [read_speech(item, 0.0, 20.0) for item in chosen]
    assert [(s.utterance.name, s.text, s.speaker, s.duration) for s in spoken] == [
        ("u1", "one", "ann", 1.0),
        ("u2", "two", "bob", 2.0),
    ]
    np.testing.assert_allclose(spoken[1].samples, samples[32_000:], atol=1e-4)
    np.testing.assert_allclose(read_speech(chosen[1], 0.5, 0.25).samples, samples[40_000:44_000], atol=1e-4)
    (whole,) = find_utterances(tmp_path, [tmp_path / "long.wav"], 3, "dev-clean")
    assert (whole.utterance.name, whole.utterance.label) == ("long.wav", "")
    train, held_out = hold_out_speakers(read_labelled(tmp_path, phones=False), "words", seed=0)
    assert sorted(u.length(64_000) for u in train + held_out) == [16_000, 32_000]


def test_a_folder_without_labels_gives_utterances_without_labels(tmp_path: Path) -> None:
    for index in range(5):
        write(tmp_path / f"{index}.wav", 0.1 * np.random.default_rng(index).normal(size=16_000))
    chosen = find_utterances(tmp_path, [], 2, "dev-clean")
    assert [(item.utterance.name, item.utterance.label) for item in chosen] == [("0.wav", ""), ("2.wav", "")]


def test_files_of_the_same_name_keep_the_folders_that_differ(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "1.wav", np.ones(16_000))
    files = [tmp_path / "a" / "1.wav", tmp_path / "b" / "1.wav"]
    for chosen in (find_utterances(tmp_path, [], 2, "dev-clean"), find_utterances(None, files, 2, "")):
        assert [item.utterance.name for item in chosen] == ["a/1.wav", "b/1.wav"]
        assert len({file_stem(item.utterance) for item in chosen}) == 2
    assert find_utterances(None, files[:1], 1, "")[0].utterance.name == "1.wav"


def test_the_command_takes_files_with_their_labels_and_draws_them_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = sorted(corpus().glob("*.flac"))[3]
    out = str(tmp_path)
    dispatch(["analyze", "utterance", str(trained()), "--data", str(corpus()), "--out", out, str(path)])
    (kept,) = tmp_path.glob("*.json")
    assert load_findings(kept)["text"] == "first <i>second</i>"
    before = kept.with_suffix(".svg").read_bytes()
    kept.with_suffix(".svg").unlink()
    dispatch(["analyze", "utterance", str(tmp_path), "--out", out, "--redraw"])
    assert kept.with_suffix(".svg").read_bytes() == before


def test_findings_of_utterances_are_all_there() -> None:
    assert sum(name.startswith("utterance-") for name in findings()) == 3
