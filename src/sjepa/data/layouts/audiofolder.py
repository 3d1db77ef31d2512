"""Hugging Face's audiofolder: metadata.csv, .jsonl or .parquet next to the audio, or a folder per split and class."""

import os
from pathlib import Path

from sjepa.audio.io import show_path
from sjepa.data.corpus import audio_files
from sjepa.data.layouts import Found, Item, Source, identifier
from sjepa.data.layouts.fields import pack_labels
from sjepa.data.layouts.manifest import lines, make_item, refuse_others
from sjepa.data.splits import is_split_folder
from sjepa.data.storage import ByteRange
from sjepa.errors import UserError

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def recognises(path: str) -> bool:
    return os.path.isdir(path) and any(names_files(file) for file in metadata_files(path))


def metadata_files(path: str) -> list[str]:
    """The metadata files of a folder: its own, or one per split folder."""
    try:
        folders = [path, *sorted(entry.path for entry in os.scandir(path) if entry.is_dir())]
    except OSError:
        return []
    return [file for folder in folders for name in METADATA if os.path.isfile(file := os.path.join(folder, name))]


def names_files(file: str) -> bool:
    """Whether a list has the column `file_name`."""
    try:
        first = next((line for _, line in lines(file) if isinstance(line, dict)), {})
    except (UserError, OSError):
        return False
    return "file_name" in first


def items(source: Source) -> Found:
    files = [file for file in metadata_files(source.path) if names_files(file)]
    if not files:
        yield from class_items(source)
        return
    named: set[str] = set()
    for file in files:
        split = find_split(os.path.dirname(file), source.path)
        for number, line in lines(file):
            if isinstance(line, str):
                yield f"{show_path(file)} line {number}: {line}"
                continue
            item = make_item(line, file, number, source.root)
            if isinstance(item, Item):
                path = os.path.normpath(item.place.path)
                named.add(item.place.path)
                # A list at the top names files of all splits: train/a.wav.
                inside = find_split(os.path.dirname(path), source.path)
                item = item._replace(split=item.split or split or inside)
            yield item
    yield from refuse_others(source.path, named, "no metadata file names it")


def class_items(source: Source) -> Found:
    """Audio in folders named after splits and classes: train/yes/1.wav."""
    refused: list[str] = []
    for path in audio_files(Path(source.path), refused):
        folder = os.path.dirname(path)
        split = find_split(folder, source.path)
        own = folder != source.path and not (split and os.path.dirname(folder) == source.path)
        labels = pack_labels({"label": show_path(os.path.basename(folder))} if own else {})
        yield Item(ByteRange(path), identifier(path, source.root), split=split, labels=labels)
    yield from refused


def find_split(folder: str, root: str) -> str:
    """The split of a folder: the topmost folder below the root, if it has the name of a split."""
    top = os.path.relpath(folder, root).split(os.sep)[0]
    return top if is_split_folder(top) else ""
