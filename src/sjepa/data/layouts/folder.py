"""Any folder of audio: an utterance a file, named by its path."""

from pathlib import Path

from sjepa.data.corpus import audio_files
from sjepa.data.layouts import Found, Item, identifier
from sjepa.data.storage import Place


def items(source: str, root: str) -> Found:
    refused: list[str] = []
    for path in audio_files(Path(source), refused):
        yield Item(Place(path), identifier(path, root))
    yield from refused
