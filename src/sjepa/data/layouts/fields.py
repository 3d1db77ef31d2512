"""The names that lists of utterances, and labels in tars, use for the same field."""

import json
from contextlib import suppress
from typing import Any

from sjepa.data.layouts import Item
from sjepa.files import escape_text

# The first name that is present counts.
NAMES = {
    "path": ("audio_filepath", "path", "audio_file", "audio", "file", "filename", "file_name", "wav"),
    "id": ("id", "utt_id", "utterance_id", "uid"),
    "offset": ("offset", "start"),
    "duration": ("duration", "dur"),
    "speaker": ("speaker", "speaker_id", "spk"),
    "sex": ("sex", "gender"),
    "chapter": ("chapter", "chapter_id"),
    "text": ("text", "transcript", "sentence", "transcription"),
    "split": ("split",),
}
# Columns with the location or the alignment of audio, which are not labels.
ASIDE = {name for names in NAMES.values() for name in names} | {"shard_id", "samples", "phones", "words"}


def field(line: dict[str, Any], name: str) -> Any:
    return next((line[key] for key in NAMES[name] if line.get(key) not in (None, "")), None)


def text_field(line: dict[str, Any], name: str) -> str:
    """A field as text, empty if there is none. A speaker may be the number 0."""
    value = field(line, name)
    return "" if value is None else escape_text(str(value))


def add_labels(item: Item, line: dict[str, Any]) -> Item:
    """Add the labels of a line to an item."""
    return item._replace(
        speaker=text_field(line, "speaker"),
        sex=text_field(line, "sex"),
        chapter=text_field(line, "chapter"),
        text=text_field(line, "text"),
        split=text_field(line, "split"),
        labels=other_labels(line),
    )


def other_labels(line: dict[str, Any]) -> str:
    """All other columns of a line as a JSON object; empty if there are none. Our shards store it as `labels`."""
    known = {str(key): value for key, value in line.items() if key not in ASIDE and value not in (None, "")}
    packed = known.get("labels")
    if isinstance(packed, str) and packed.startswith("{"):
        with suppress(ValueError, RecursionError):
            known = {key: value for key, value in known.items() if key != "labels"} | json.loads(packed)
    return pack_labels({key: value for key, value in known.items() if is_plain(value)})


def pack_labels(labels: dict[str, Any]) -> str:
    """Labels as a JSON object; empty if there are none."""
    return json.dumps(labels, sort_keys=True) if labels else ""


def is_plain(value: Any) -> bool:
    """Whether JSON can hold a value."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
