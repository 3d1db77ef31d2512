"""The names under which lists of utterances, and labels in tars, hold the same thing."""

from typing import Any

from sjepa.audio.io import printable

LABELS = ("speaker", "sex", "chapter", "text")
# The first that is there counts.
NAMES = {
    "path": ("audio_filepath", "path", "audio_file", "audio", "file", "filename", "wav"),
    "id": ("id", "utt_id", "utterance_id", "uid"),
    "offset": ("offset", "start"),
    "duration": ("duration", "dur"),
    "speaker": ("speaker", "speaker_id", "spk"),
    "sex": ("sex", "gender"),
    "chapter": ("chapter", "chapter_id"),
    "text": ("text", "transcript", "sentence"),
}


def field(line: dict[str, Any], name: str) -> Any:
    return next((line[key] for key in NAMES[name] if line.get(key) not in (None, "")), None)


def words(line: dict[str, Any], name: str) -> str:
    """A field as text, empty where there is none; a speaker may be the number 0."""
    value = field(line, name)
    return "" if value is None else printable(str(value))
