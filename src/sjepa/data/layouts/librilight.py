"""LibriLight: SIZE/SPEAKER/BOOK/RECORDING.flac, each with a .json that names the speaker and the voiced stretches."""

import json
import math
import os
from itertools import islice
from pathlib import Path
from typing import Any

from sjepa.audio.io import show_path
from sjepa.data.corpus import audio_files
from sjepa.data.layouts import Found, Item, Source, identifier
from sjepa.data.storage import ByteRange
from sjepa.files import escape_text


def recognises(source: str) -> bool:
    return any("voice_activity" in (read_metadata(path) or {}) for path in islice(audio_files(Path(source), []), 20))


def items(source: Source) -> Found:
    refused: list[str] = []
    for path in audio_files(Path(source.path), refused):
        metadata = read_metadata(path)
        if metadata is None:
            yield f"{show_path(path)}: its .json is damaged: repair it, or remove it to cut the recording at silences"
            continue
        try:
            voice = tuple((float(begin), float(end)) for begin, end in metadata.get("voice_activity") or ())
            if not all(math.isfinite(edge) for pair in voice for edge in pair):
                raise ValueError("not finite")
        except (TypeError, ValueError, OverflowError):
            yield f"{show_path(path)}: voice_activity in its .json is not a list of pairs of seconds"
            continue
        speaker = escape_text(str(metadata.get("speaker") or os.path.basename(os.path.dirname(os.path.dirname(path)))))
        yield Item(ByteRange(path), identifier(path, source.root), voice=voice, speaker=speaker)
    yield from refused


def read_metadata(path: str) -> dict[str, Any] | None:
    """The .json next to a recording: empty if there is none, None if it is damaged."""
    metadata_file = Path(os.path.splitext(path)[0] + ".json")
    if not metadata_file.is_file():
        return {}
    try:
        metadata = json.loads(metadata_file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return metadata if isinstance(metadata, dict) else None
