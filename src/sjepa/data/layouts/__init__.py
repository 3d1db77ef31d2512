"""Layouts of known corpora: each turns a place into items, one file a layout."""

import importlib
import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sjepa.audio.io import shown
from sjepa.data.storage import Place


class Item(NamedTuple):
    """A recording, or a stretch of one, that a layout found; what is unknown is empty."""

    place: Place
    id: str
    offset: float = 0.0  # seconds
    duration: float | None = None
    """Seconds; None: to the end of the recording."""
    voice: tuple[tuple[float, float], ...] = ()
    """Where there is voice: pairs of seconds."""
    speaker: str = ""
    sex: str = ""
    chapter: str = ""
    text: str = ""


# What a layout yields: items, and as text what it had to refuse.
Found = Iterator[Item | str]
Layout = Literal["auto", "folder", "librispeech", "librilight", "manifest", "tars"]


def identifier(path: str, root: str) -> str:
    """A file's path below the root of all sources, without its ending."""
    return os.path.splitext(shown(os.path.relpath(path, root)))[0]


def found(sources: list[str], layout: Layout) -> Found:
    """Everything in the sources, in a stable order; a layout is told by what a place looks like, or named."""
    sources = [os.path.abspath(source) for source in sources]
    root = os.path.commonpath([source if os.path.isdir(source) else os.path.dirname(source) for source in sources])
    for source in sources:
        name = layout if layout != "auto" else layout_of(source)
        yield from importlib.import_module(f"sjepa.data.layouts.{name}").items(source, root)


def layout_of(source: str) -> str:
    from sjepa.data.layouts import librilight, librispeech, manifest

    if not os.path.isdir(source):
        return "tars" if source.endswith(".tar") else "manifest"
    if librispeech.recognised(source):
        return "librispeech"
    if librilight.recognised(source):
        return "librilight"
    return "manifest" if manifest.recognised(source) else "folder"
