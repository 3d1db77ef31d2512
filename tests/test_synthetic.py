"""The synthetic corpus: its times are exact, it covers English, and the same call gives the same bytes."""

import itertools
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sjepa.data import espeak
from sjepa.data.synthetic import VOICES, Spoken, sentences, speak, synthesise_corpus
from sjepa.errors import UserError

pytest.importorskip("espeakng_loader")
soundfile = pytest.importorskip("soundfile")

VOWELS = {*"iɪɛæɑɒɔʊuʌəɜ", "eɪ", "aɪ", "ɔɪ", "aʊ", "oʊ", "eə", "iə", "ʊə"}
CONSONANTS = {*"pbtdkɡfvθðszʃʒhmnŋlɹjwɾ", "tʃ", "dʒ"}


@pytest.fixture(scope="module")
def utterances() -> list[tuple[str, Spoken]]:
    """A hundred sentences, spoken by all voices in turn."""
    return [(text, speak(text, voice)) for text, voice in zip(sentences(100, seed=0), itertools.cycle(VOICES))]


def pieces(utterances: list[tuple[str, Spoken]], symbols: set[str]) -> list[np.ndarray]:
    """The audio of every phone in `symbols`."""
    return [
        spoken.samples[round(start * 16_000) : round(end * 16_000)]
        for _, spoken in utterances
        for start, end, symbol in spoken.phones
        if symbol in symbols
    ]


def decibels(audio: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(audio.astype(np.float64) ** 2)))


def centroid(audio: np.ndarray) -> float:
    power = np.abs(np.fft.rfft(audio)) ** 2
    return float((power * np.fft.rfftfreq(len(audio), 1 / 16_000)).sum() / power.sum())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make(folder: Path, seed: int = 0) -> Path:
    return synthesise_corpus(folder, voices=2, sentences_per_voice=3, seed=seed)


def test_phones_tile_the_time_axis(utterances: list[tuple[str, Spoken]]) -> None:
    for _, spoken in utterances:
        assert spoken.phones[0][0] == 0
        assert spoken.phones[-1][1] == len(spoken.samples) / 16_000
        assert all(start < end for start, end, _ in spoken.phones)
        assert all(left[1] == right[0] for left, right in itertools.pairwise(spoken.phones))


def test_every_word_of_the_text_has_its_times_in_order(utterances: list[tuple[str, Spoken]]) -> None:
    for text, spoken in utterances:
        assert [word for _, _, word in spoken.words] == [token.strip(".,?") for token in text.split()]
        assert all(start < end for start, end, _ in spoken.words)
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spoken.words))
        assert spoken.words[0][0] > 0
        assert spoken.words[-1][1] < len(spoken.samples) / 16_000


def test_a_written_number_is_one_word_of_several_phones() -> None:
    spoken = speak("Take 42 of the eggs", VOICES[0])
    assert [word for _, _, word in spoken.words] == ["Take", "42", "of", "the", "eggs"]
    start, end, _ = spoken.words[1]
    assert "".join(symbol for a, b, symbol in spoken.phones if start <= a and b <= end) == "fɔɾitu"


def test_silence_is_faint_noise_and_vowels_are_loud(utterances: list[tuple[str, Spoken]]) -> None:
    silences = [decibels(audio) for audio in pieces(utterances, {"sil"})]
    assert max(silences) < -57
    assert min(silences) > -63
    assert min(decibels(audio) for audio in pieces(utterances, VOWELS)) > max(silences) + 10


def test_voiceless_stops_begin_with_their_closure(utterances: list[tuple[str, Spoken]]) -> None:
    openings = [audio[:160] for audio in pieces(utterances, {"p", "t", "k"})]
    assert np.mean([decibels(audio) < -50 for audio in openings]) > 0.7


def test_liquids_after_a_vowel_are_voiced_and_not_the_gap_before_the_next_consonant(
    utterances: list[tuple[str, Spoken]],
) -> None:
    liquids = pieces(utterances, {"l", "ɹ"})
    assert min(len(audio) for audio in liquids) >= 0.015 * 16_000
    assert min(decibels(audio) for audio in liquids) > -45


def test_fricatives_hiss_and_vowels_hum(utterances: list[tuple[str, Spoken]]) -> None:
    assert min(centroid(audio) for audio in pieces(utterances, {"s", "ʃ", "tʃ"})) > 2_000
    assert np.percentile([centroid(audio) for audio in pieces(utterances, VOWELS)], 95) < 2_000


def test_every_english_phone_appears_and_no_other(utterances: list[tuple[str, Spoken]]) -> None:
    found = {symbol for _, spoken in utterances for _, _, symbol in spoken.phones}
    assert found == VOWELS | CONSONANTS | {"sil"}


def test_utterances_are_short_and_of_natural_loudness(utterances: list[tuple[str, Spoken]]) -> None:
    assert 2 < np.mean([len(spoken.samples) / 16_000 for _, spoken in utterances]) < 4
    for _, spoken in utterances:
        assert spoken.samples.dtype == np.float32
        assert 0.3 < np.abs(spoken.samples).max() < 0.7


def test_the_same_call_is_bit_identical_whatever_was_synthesised_in_between() -> None:
    first = speak("A huge yellow vase.", VOICES[0])
    speak("Something else entirely, and longer.", VOICES[3])
    second = speak("A huge yellow vase.", VOICES[0])
    assert np.array_equal(first.samples, second.samples)
    assert (first.phones, first.words) == (second.phones, second.words)


def test_ctrl_c_while_espeak_calls_back_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in a function that C calls would be dropped, together with the audio of that call."""
    make_phoneme, calls = espeak.Phoneme, itertools.count()

    def interrupt(*fields: Any) -> espeak.Phoneme:
        if next(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return make_phoneme(*fields)

    monkeypatch.setattr(espeak, "Phoneme", interrupt)
    with pytest.raises(KeyboardInterrupt):
        speak("The tall ship sailed east.", VOICES[0])


def test_all_voices_sound_different() -> None:
    assert len({voice.name for voice in VOICES}) == len(VOICES) >= 12
    assert {voice.gender for voice in VOICES[:2]} == {"f", "m"}
    # espeak ignores a variant it does not know, so each is compared with its accent alone, prosody being equal
    for voice in VOICES:
        plain = replace(voice, espeak=voice.espeak.split("+")[0])
        assert not np.array_equal(speak("Hello.", voice).samples, speak("Hello.", plain).samples)


def test_prosody_follows_the_voice() -> None:
    calm = replace(VOICES[0], rate=120)
    excited = replace(VOICES[0], rate=240)
    ratio = len(speak("I never said that.", calm).samples) / len(speak("I never said that.", excited).samples)
    assert 1.3 < ratio < 2.2


def test_sentences_are_all_different_and_depend_on_the_seed() -> None:
    many = sentences(2_000, seed=1)
    assert len(set(many)) == 2_000
    assert sentences(50, seed=1) == many[:50]
    assert sentences(50, seed=2) != many[:50]


def test_the_corpus_is_deterministic_and_labels_match_the_audio(tmp_path: Path) -> None:
    folder = make(tmp_path / "first")
    assert contents(folder) == contents(make(tmp_path / "second"))
    labels = [json.loads(line) for line in (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [label["id"] for label in labels] == [f"{name}-000{n}" for name in ("amy", "brian") for n in (1, 2, 3)]
    assert len({label["text"] for label in labels}) == 6
    for label in labels:
        audio, rate = soundfile.read(folder / label["path"])
        assert (rate, audio.ndim) == (16_000, 1)
        assert len(audio) / rate == label["duration"] == label["phones"][-1][1]


def test_a_whole_corpus_is_reused_untouched(tmp_path: Path) -> None:
    folder = make(tmp_path / "corpus")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert make(folder) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_half_written_corpus_is_made_again(tmp_path: Path) -> None:
    folder = make(tmp_path / "corpus")
    whole = contents(folder)
    (folder / "labels.jsonl").unlink()
    (folder / "audio/amy/amy-0002.flac").write_bytes(b"cut short")
    (folder / "audio/brian/brian-0003.flac").unlink()
    assert contents(make(folder)) == whole


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "corpus", seed=0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="choose another folder"):
        make(tmp_path / "corpus", seed=1)
    with pytest.raises(UserError, match="choose another folder"):
        make(tmp_path / "other")


def test_mistakes_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="voices = 99"):
        synthesise_corpus(tmp_path, voices=99)
    with pytest.raises(UserError, match="no speech for"):
        speak("...", VOICES[0])
    with pytest.raises(UserError, match="no voice 'martian'"):
        speak("Hello.", replace(VOICES[0], espeak="martian"))
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(UserError, match=r"pip install 'sjepa\[demo\]'"):
        speak("Hello.", VOICES[0])
