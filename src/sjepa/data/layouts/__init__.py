"""Layouts of known corpora, one file per layout: each reads the items of a source."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sjepa.audio.io import show_path
from sjepa.data.storage import ByteRange

# All layouts, in the order in which they are tried. A layout is the module of the same name in this folder:
# `recognises(path)` tells whether a source has the layout, and `items(source)` reads it.
LAYOUTS = (
    "tars",
    "kaldi",
    "lhotse",
    "hugging_face",
    "librispeech",
    "librilight",
    "audiofolder",
    "manifest",
    "folder",
)

SCANNED = frozenset({"tars", "librispeech", "librilight", "folder"})
"""Layouts that use all audio files of a folder, so that a scan finds them. Others are read as by `sjepa index`."""

if TYPE_CHECKING:
    Layout = str
else:
    Layout = Literal[("auto", *LAYOUTS)]


LATEST = 1e9  # seconds: the end of the longest recording


class Item(NamedTuple):
    """A recording, or a stretch of one, that a layout found. Unknown fields are empty."""

    place: ByteRange
    id: str
    offset: float = 0.0  # seconds
    duration: float | None = None
    """Seconds; None: to the end of the recording."""
    voice: tuple[tuple[float, float], ...] = ()
    """Stretches with voice: pairs of seconds."""
    speaker: str = ""
    sex: str = ""
    chapter: str = ""
    text: str = ""
    split: str = ""
    """Its split, as the corpus calls it: train, validation and so on."""
    labels: str = ""
    """All further columns, as a JSON object."""


class Source(NamedTuple):
    """A place to read items from."""

    path: str
    root: str
    """The folder above all sources."""
    unpacked: Path
    """Folder for audio that has to be unpacked from a compressed file."""


# What a layout yields: items, and reasons for refused ones as text.
Found = Iterator[Item | str]


def cache_folder() -> Path:
    """Folder for files that can be recreated."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sjepa"


def identifier(path: str, root: str) -> str:
    """The path of a file below the root of all sources, without its suffix."""
    return os.path.splitext(show_path(os.path.relpath(path, root)))[0]


def find_items(sources: list[str], layout: Layout, unpacked: Path | None = None) -> Found:
    """All items of the sources in a stable order. `auto` detects the layout of each source."""
    sources = [os.path.abspath(source) for source in sources]
    root = os.path.commonpath([source if os.path.isdir(source) else os.path.dirname(source) for source in sources])
    for source in sources:
        name = layout if layout != "auto" else detect_layout(source)
        place = Source(source, root, (unpacked or cache_folder() / "unpacked").absolute())
        for found in find_layout(name).items(place):
            possible = isinstance(found, str) or is_possible(found.offset, found.duration)
            yield found if possible else refuse_stretch(found)


def is_possible(offset: float, duration: float | None) -> bool:
    """Whether a stretch can be in a recording; NaN compares false."""
    return 0 <= offset <= LATEST and (duration is None or 0 < duration <= LATEST)


def refuse_stretch(item: Item) -> str:
    path = show_path(item.place.path)
    return f"{path}: {item.id} starts at {item.offset} s and lasts {item.duration} s: not possible"


def find_layout(name: str) -> Any:
    """The module of a layout."""
    return importlib.import_module(f"{__name__}.{name}")


def detect_layout(source: str) -> str:
    """The layout of a source: the first that recognises it."""
    return next(name for name in LAYOUTS if find_layout(name).recognises(source))


def find_file(path: str, folder: str) -> str | None:
    """Find a file from a list: by its absolute path, or relative to the folder of the list, to one of the four folders
    above it, or to the working directory."""
    if os.path.isabs(path):
        return path if os.path.exists(path) else None
    bases = [Path(folder), *Path(folder).parents[:4], Path.cwd()]
    return next((str(base / path) for base in bases if (base / path).exists()), None)
