"""Make a small speech corpus with espeak-ng, with exact times of phones and words."""

import itertools
import json
import re
import string
import unicodedata
import zlib
from bisect import bisect_right
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sjepa.audio.io import SAMPLE_RATE
from sjepa.data.espeak import ESPEAK_RATE, Phoneme, Voice, run_espeak
from sjepa.data.layouts.manifest import LABELS_FILE
from sjepa.data.sentences import sentences
from sjepa.errors import UserError
from sjepa.files import write_whole
from sjepa.progress import track

__all__ = ["VOICES", "Spoken", "Voice", "sentences", "speak", "synthesise_corpus"]

SILENCE = "sil"
PUNCTUATION = string.punctuation + "“”‘’…–—"
EDGE_SECONDS = 0.15  # silence before and after every utterance, as in recorded speech
NOISE_LEVEL = 1e-3  # -60 dB of full scale, so that silence is not digital zero
CODA_SHARE = 0.4  # espeak renders some final [l] and [ɹ] in the last 40% of the vowel before, by spectral distance

# Accents have different symbols for a vowel. Each is mapped to the Received Pronunciation vowel of the same words.
_SPELLINGS = (
    "ɹ: r, w: ʍ, t: ʔ, l: əl, j: ʲ, ə: ɐ, ɪ: ᵻ, æ: a, ɑ: ɑɹ, ɔ: ɔɹ oɹ, ɜ: ɚ əɹ ʌɹ, u: ʉ, "
    "eɪ: e, oʊ: o əʊ, aɪ: aɪə aɪɚ, aʊ: ʌʉ æʊ, eə: ɛɹ, iə: ɪɹ, ʊə: ʊɹ ʉɹ"
)
FOLD = {
    spelling: phone
    for phone, spellings in (entry.split(": ") for entry in _SPELLINGS.split(", "))
    for spelling in spellings.split()
}


# Variants with an echo (f2 to f5, m2) are left out, because an echo fills the stop closures and pauses that `_marks`
# needs.
VOICES = (
    Voice("amy", "f", "en-us+f1", pitch=50, pitch_range=50, rate=165, peak=0.50),
    Voice("brian", "m", "en+m3", pitch=35, pitch_range=55, rate=160, peak=0.55),
    Voice("clara", "f", "en-gb-x-rp+linda", pitch=42, pitch_range=60, rate=155, peak=0.40),
    Voice("duncan", "m", "en-gb-scotland+m1", pitch=70, pitch_range=65, rate=170, peak=0.60),
    Voice("ella", "f", "en-us+Annie", pitch=55, pitch_range=70, rate=180, peak=0.45),
    Voice("frank", "m", "en-us+m7", pitch=40, pitch_range=45, rate=175, peak=0.65),
    Voice("grace", "f", "en+aunty", pitch=60, pitch_range=40, rate=145, peak=0.35),
    Voice("henry", "m", "en-us+m5", pitch=30, pitch_range=35, rate=150, peak=0.50),
    Voice("isla", "f", "en-gb-scotland+Andrea", pitch=45, pitch_range=55, rate=170, peak=0.50),
    Voice("jack", "m", "en-gb-x-gbclan+m4", pitch=80, pitch_range=60, rate=165, peak=0.45),
    Voice("kate", "f", "en-us+linda", pitch=50, pitch_range=75, rate=185, peak=0.55),
    Voice("liam", "m", "en-gb-x-rp+m6", pitch=55, pitch_range=50, rate=155, peak=0.40),
    Voice("megan", "f", "en-gb-x-gbclan+belinda", pitch=30, pitch_range=45, rate=160, peak=0.60),
    Voice("noah", "m", "en-us+rob", pitch=65, pitch_range=75, rate=180, peak=0.55),
)


@dataclass(frozen=True)
class Spoken:
    """An utterance: 16 kHz mono samples, phones that cover the whole time, and words."""

    samples: np.ndarray
    phones: list[tuple[float, float, str]]
    words: list[tuple[float, float, str]]


def speak(text: str, voice: Voice) -> Spoken:
    """Synthesise `text`. The same call always returns the same samples."""
    import soxr

    raw, phonemes = run_espeak(text, voice)
    speech = soxr.resample(raw.astype(np.float32), ESPEAK_RATE, SAMPLE_RATE)
    edge = round(EDGE_SECONDS * SAMPLE_RATE)
    samples = np.pad(speech * (voice.peak / np.abs(speech).max()), edge)
    generator = np.random.default_rng(zlib.crc32(f"{voice.name} {text}".encode()))
    samples += NOISE_LEVEL * generator.standard_normal(len(samples), dtype=np.float32)

    marks = _marks(raw, phonemes, text)
    starts = [(edge + round(mark.sample * SAMPLE_RATE / ESPEAK_RATE)) / SAMPLE_RATE for mark in marks]
    starts[0] = 0.0  # the leading silence
    ends = [*starts[1:], len(samples) / SAMPLE_RATE]
    segments = [(start, end, mark) for start, end, mark in zip(starts, ends, marks, strict=True) if end > start]
    phones = [(start, end, mark.symbol) for start, end, mark in segments]
    sounding = [segment for segment in segments if segment[2].symbol != SILENCE]
    words = []
    for word, group in itertools.groupby(sounding, key=lambda segment: segment[2].word):
        parts = list(group)
        words.append((parts[0][0], parts[-1][1], word[1]))
    return Spoken(samples, phones, words)


def synthesise_corpus(folder: Path, *, voices: int = 8, sentences_per_voice: int = 40, seed: int = 0) -> Path:
    """Write (or reuse) a corpus of `audio/` and `labels.jsonl` in `folder`, and return the folder."""
    import soundfile

    if not 1 <= voices <= len(VOICES):
        raise UserError(f"voices = {voices}: the synthesiser has 1 to {len(VOICES)} voices")
    speakers = VOICES[:voices]
    settings = {"voices": [asdict(voice) for voice in speakers], "sentences": sentences_per_voice, "seed": seed}
    labels = folder / LABELS_FILE
    if _read_settings(folder) == settings:
        if labels.exists():
            return folder
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} holds other files: delete it, or choose another folder for the corpus")

    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "corpus.json", json.dumps(settings, indent=2) + "\n")
    texts = sentences(voices * sentences_per_voice, seed)
    lines = []
    for index, text in enumerate(track(texts, "Synthesising speech")):
        voice = speakers[index // sentences_per_voice]
        identifier = f"{voice.name}-{index % sentences_per_voice + 1:04d}"
        spoken = speak(text, voice)
        path = folder / "audio" / voice.name / f"{identifier}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, spoken.samples, SAMPLE_RATE, subtype="PCM_16")
        utterance = {
            "id": identifier,
            "path": path.relative_to(folder).as_posix(),
            "speaker": voice.name,
            "gender": voice.gender,
            "text": text,
            "duration": len(spoken.samples) / SAMPLE_RATE,
            "phones": spoken.phones,
            "words": spoken.words,
        }
        lines.append(json.dumps(utterance, ensure_ascii=False) + "\n")
    write_whole(labels, "".join(lines))  # last, because its presence marks a complete corpus
    return folder


def _read_settings(folder: Path) -> Any:
    try:
        return json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None


class _Mark(NamedTuple):
    """The start of a phone, and its word as (position in the text, spelling)."""

    sample: int
    symbol: str
    word: tuple[int, str]


def _marks(raw: np.ndarray, phonemes: list[Phoneme], text: str) -> list[_Mark]:
    """Turn espeak's phonemes into the starts of phones and silences, from the first sample to the last."""
    tokens = [(match.start(), match[0].strip(PUNCTUATION) or match[0]) for match in re.finditer(r"\S+", text)]
    token_starts = [start for start, _ in tokens]
    sounding = np.flatnonzero(raw)
    marks = [_Mark(0, SILENCE, tokens[0])]
    ends = [*(phoneme.sample for phoneme in phonemes[1:]), len(raw)]
    for phoneme, end in zip(phonemes, ends, strict=True):
        symbol = _fold(phoneme.ipa)
        silent = not raw[phoneme.sample : end].any()
        if symbol == SILENCE and (not silent or marks[-1].symbol == SILENCE):
            continue  # an unnamed glide between two vowels, which belongs to the first; or more of the same pause
        # espeak plays digital silence before a consonant (a stop's closure) and only then sends the event. Silence that
        # reaches back to the previous mark belongs to that mark and is a pause.
        sounds_before = np.searchsorted(sounding, phoneme.sample)
        start = int(sounding[sounds_before - 1]) + 1 if sounds_before else 0
        if start <= marks[-1].sample:
            start = phoneme.sample
        if silent and symbol in ("l", "ɹ"):
            start -= round(CODA_SHARE * (start - marks[-1].sample))
        word = tokens[max(bisect_right(token_starts, phoneme.text_position - 1) - 1, 0)]
        marks.append(_Mark(start, symbol, word))
    if marks[-1].symbol != SILENCE:
        marks.append(_Mark(len(raw), SILENCE, marks[-1].word))
    return marks


def _fold(ipa: str) -> str:
    """Strip stress, length and diacritics from an IPA symbol, and merge the symbols of different accents."""
    bare = "".join(char for char in ipa if char not in "ˈˌː:" and not unicodedata.combining(char))
    return FOLD.get(bare, bare) or SILENCE
