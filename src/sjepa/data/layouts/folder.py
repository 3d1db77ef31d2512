"""Any folder of audio: one utterance per file, named by its path."""

from pathlib import Path

from sjepa.audio.io import show_path
from sjepa.data.corpus import LOOKED_FOR, audio_files
from sjepa.data.layouts import Found, Item, Source, identifier
from sjepa.data.storage import ByteRange


def recognises(path: str) -> bool:
    return True


def items(source: Source) -> Found:
    refused: list[str] = []
    found = False
    for path in audio_files(Path(source.path), refused):
        found = True
        yield Item(ByteRange(path), identifier(path, source.root))
    yield from refused
    if not found and not refused:
        yield f"{show_path(source.path)}: no audio in it; {LOOKED_FOR}"
