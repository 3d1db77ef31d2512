"""Tar files of audio, WebDataset style: one recording per member, with labels in members of the same name."""

import json
import os
import tarfile
from collections.abc import Iterator
from typing import Any

from sjepa.audio.io import EXTENSIONS, one_line, show_path
from sjepa.data.layouts import Found, Item, Source, identifier
from sjepa.data.layouts.fields import add_labels, text_field
from sjepa.data.storage import ByteRange
from sjepa.files import escape_text


def recognises(path: str) -> bool:
    return path.endswith(".tar") and not os.path.isdir(path)


def items(source: Source) -> Found:
    base = identifier(source.path, source.root)
    known: dict[str, dict[str, Any]] = {}
    pending: list[tuple[str, ByteRange]] = []
    for member in members(source.path):
        if isinstance(member, str):
            yield member
            continue
        name, place = member
        key, ending = split_name(name)
        if f".{ending.rpartition('.')[2].lower()}" in EXTENSIONS:
            pending.append((key, place))
        elif ending in ("json", "txt"):
            known.setdefault(key, {}).update(read_labels(place, ending))
    for key, place in pending:
        labels = known.get(key, {})
        name = text_field(labels, "id") or escape_text(f"{base}/{key}")
        yield add_labels(Item(place, name), labels)


def split_name(name: str) -> tuple[str, str]:
    """Split the name of a member as WebDataset does: at the first dot after its folder."""
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return f"{folder}{slash}{stem}", ending


def read_labels(place: ByteRange, ending: str) -> dict[str, Any]:
    with open(place.path, "rb") as file:
        file.seek(place.offset)
        content = file.read(place.size)
    if ending == "txt":
        return {"text": content.decode(errors="replace").strip()}
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return labels if isinstance(labels, dict) else {}


def members(source: str) -> Iterator[tuple[str, ByteRange] | str]:
    """The name and place of each file in a tar, or why it is refused."""
    try:
        with tarfile.open(source, "r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.issym() or member.islnk():
                    target = show_path(member.linkname)
                    yield f"{show_path(source)}: member {show_path(name)} is a link to {target}: store the file instead"
                elif not member.isfile():
                    continue
                elif member.issparse():  # only parts of the file are in the tar
                    yield f"{show_path(source)}: member {show_path(name)} is sparse: make the tar without -S"
                elif name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
                    yield f"{show_path(source)}: member {show_path(name)} has a path outside the archive"
                elif member.size:
                    yield name, ByteRange(source, member.offset_data, member.size)
                else:
                    yield f"{show_path(source)}: member {show_path(name)} is empty"
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        yield f"{show_path(source)}: damaged from here on, or not a tar file ({one_line(error)})"
