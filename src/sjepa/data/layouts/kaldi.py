"""Kaldi data directories: wav.scp, with segments, text, utt2spk, spk2gender and further utt2* files.

A folder of such directories (train, test) is read whole, each directory as the split of its name. Commands in wav.scp
are never run.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from sjepa.audio.io import show_path
from sjepa.data.layouts import Found, Item, Source, find_file
from sjepa.data.layouts.fields import pack_labels
from sjepa.data.storage import ByteRange, is_url
from sjepa.files import escape_text

WAVES = "wav.scp"
# utt2* files that Kaldi makes of the others; the rest are labels: utt2lang, utt2emotion.
DERIVED = {"utt2spk", "utt2dur", "utt2num_frames", "utt2uniq", "utt2max_frames", "utt2num_samples"}


def recognises(path: str) -> bool:
    return os.path.isdir(path) and bool(data_folders(path))


def data_folders(path: str) -> list[Path]:
    """The data directory itself, or those directly below it."""
    folder = Path(path)
    if (folder / WAVES).is_file():
        return [folder]
    try:
        return sorted(below for below in folder.iterdir() if (below / WAVES).is_file())
    except OSError:
        return []


def items(source: Source) -> Found:
    folders = data_folders(source.path)
    if not folders:
        yield f"{show_path(source.path)}: no {WAVES} in it or in a folder directly below it"
    for folder in folders:
        yield from read_folder(folder)


def read_folder(folder: Path) -> Found:
    places: dict[str, ByteRange] = {}
    for number, key, value in pairs(folder / WAVES):
        place = find_recording(key, value, folder)
        if isinstance(place, str):
            yield f"{show_path(folder / WAVES)} line {number}: {place}"
        else:
            places[key] = place
    spoken = Labels(folder)
    known: set[str] = set()
    if (folder / "segments").is_file():
        for number, key, value in pairs(folder / "segments"):
            known.add(key)
            stretch = read_stretch(value)
            where = f"{show_path(folder / 'segments')} line {number}"
            if isinstance(stretch, str):
                yield f"{where}: {stretch}"
            elif stretch[0] not in places:
                yield f"{where}: {key} belongs to {stretch[0]}, which is not in {WAVES}"
            else:
                recording, start, end = stretch
                yield spoken.item(places[recording], key, start, end)
    else:
        known |= {key for _, key, _ in pairs(folder / WAVES)}
        for key, place in places.items():
            yield spoken.item(place, key)
    for key in sorted(spoken.texts.keys() - known):
        yield f"{show_path(folder / 'text')}: {key} has no audio"


class Labels:
    """The labels of each utterance, from the files next to wav.scp."""

    def __init__(self, folder: Path):
        self.split = folder.name
        self.texts = table(folder / "text")
        self.speakers = table(folder / "utt2spk")
        self.sexes = table(folder / "spk2gender")
        others = sorted(path for path in folder.glob("utt2*") if path.name not in DERIVED)
        self.others = {path.name.removeprefix("utt2"): table(path) for path in others}

    def item(self, place: ByteRange, key: str, start: float = 0.0, end: float | None = None) -> Item:
        speaker = self.speakers.get(key, "")
        sex = self.others.get("gender", {}).get(key) or self.sexes.get(speaker, "")
        labels = {name: values[key] for name, values in self.others.items() if key in values}
        return Item(
            place,
            escape_text(key),
            start,
            None if end is None else end - start,
            speaker=speaker,
            sex=sex[:1].upper(),
            text=self.texts.get(key, ""),
            split=self.split,
            labels=pack_labels(labels),
        )


def pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, key and the rest of each line that is not empty."""
    if path.is_file():
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                key, value = (*line.split(maxsplit=1), "", "")[:2]
                if key:
                    yield number, key, value.strip()


def table(path: Path) -> dict[str, str]:
    return {key: escape_text(value) for _, key, value in pairs(path)}


def find_recording(key: str, value: str, folder: Path) -> ByteRange | str:
    """Where a recording is, or the reason why it cannot be read."""
    if not value:
        return f"{show_path(key)} has no path"
    if value.endswith("|"):
        command = show_path(value)[:60]
        return f"{show_path(key)} is the output of a command ({command}), which is not run: save its audio"
    if re.search(r"\.ark:\d+$", value):
        return f"{show_path(key)} is in an archive ({show_path(value)}): write its audio to a separate file"
    if is_url(value):
        return ByteRange(value)
    path = find_file(value, str(folder))
    if path is None:
        return f"there is no {show_path(value)}, neither in {show_path(folder)} nor in the folders above it"
    return ByteRange(path)


def read_stretch(value: str) -> tuple[str, float, float | None] | str:
    """Recording, start and end of a line of segments. An end of -1 is the end of the recording."""
    try:
        recording, start, end = value.split()[:3]
        begin, stop = float(start), float(end)
    except ValueError:
        return f"{show_path(value)!r} is not RECORDING START END"
    if begin < 0 or (stop != -1 and not stop > begin):
        return f"the stretch from {begin:g} to {stop:g} s is not valid"
    return recording, begin, None if stop == -1 else stop
