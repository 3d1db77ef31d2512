"""Any folder of audio: one utterance per file, named by its path."""

from pathlib import Path

from sjepa.data.corpus import audio_files
from sjepa.data.layouts import Found, Item, Source, identifier
from sjepa.data.storage import ByteRange


def recognises(path: str) -> bool:
    return True


def items(source: Source) -> Found:
    refused: list[str] = []
    for path in audio_files(Path(source.path), refused):
        yield Item(ByteRange(path), identifier(path, source.root))
    yield from refused
