"""LibriSpeech: SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac, with transcripts, and sexes in SPEAKERS.TXT."""

import os
from functools import lru_cache
from itertools import islice
from pathlib import Path

from sjepa.audio.io import show_path
from sjepa.data.corpus import audio_files
from sjepa.data.layouts import Found, Item, Source
from sjepa.data.storage import ByteRange


def speakers_file(source: str) -> Path | None:
    """SPEAKERS.TXT of the corpus: the folder itself, or the folder above a subset."""
    folder = Path(source).resolve()
    return next((f / "SPEAKERS.TXT" for f in (folder, *folder.parents[:2]) if (f / "SPEAKERS.TXT").is_file()), None)


def recognises(source: str) -> bool:
    first = islice(audio_files(Path(source), []), 20)
    return speakers_file(source) is not None or any(os.path.exists(transcripts_file(path)) for path in first)


def items(source: Source) -> Found:
    listed = speakers_file(source.path)
    sexes = read_sexes(listed) if listed else {}
    refused: list[str] = []
    for path in audio_files(Path(source.path), refused):
        name = os.path.splitext(os.path.basename(path))[0]
        speaker, _, rest = name.partition("-")
        chapter = rest.partition("-")[0]
        if not (speaker.isdigit() and chapter.isdigit()):
            yield f"{show_path(path)}: the name is not SPEAKER-CHAPTER-NUMBER, as in LibriSpeech"
            continue
        transcripts = read_transcripts(transcripts_file(path))
        sex, text = sexes.get(speaker, ""), transcripts.get(name, "")
        yield Item(ByteRange(path), name, speaker=speaker, sex=sex, chapter=f"{speaker}-{chapter}", text=text)
    yield from refused


def transcripts_file(path: str) -> str:
    """The transcripts of SPEAKER-CHAPTER-NUMBER.flac: SPEAKER-CHAPTER.trans.txt."""
    return f"{os.path.splitext(path)[0].rpartition('-')[0]}.trans.txt"


def read_sexes(path: Path) -> dict[str, str]:
    """Speaker to F or M, from lines like `14 | F | train-clean-360 | 25.03 | Kristin LeMoine`."""
    lines = (line.split("|") for line in path.read_text(errors="replace").splitlines() if not line.startswith(";"))
    return {fields[0].strip(): fields[1].strip() for fields in lines if len(fields) > 1}


@lru_cache(maxsize=4)
def read_transcripts(path: str) -> dict[str, str]:
    """The text of each utterance of a chapter."""
    if not os.path.isfile(path):
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: text for name, _, text in (line.partition(" ") for line in lines)}
