"""Lhotse manifests (jsonl, or jsonl.gz): cuts, or recordings and supervisions. Lhotse itself is not needed."""

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from sjepa.audio.io import show_path
from sjepa.data.layouts import Found, Item, Source, find_file
from sjepa.data.layouts.fields import pack_labels
from sjepa.data.layouts.manifest import lines
from sjepa.data.storage import ByteRange
from sjepa.errors import UserError
from sjepa.fields import SURPRISES, shorten
from sjepa.files import escape_text

ROUNDING = 0.1  # seconds by which a supervision may be shorter than the cut that it spans
ENDINGS = (".jsonl", ".jsonl.gz")
# `librispeech_cuts_train-clean-100.jsonl.gz`: a corpus, a kind and a split.
NAME = re.compile(r"(?:^|.*[_-])(cuts|recordings|supervisions)(?:[_-](.+?))?(?:_all)?\.jsonl(?:\.gz)?$")


def recognises(path: str) -> bool:
    if os.path.isdir(path):
        kinds = {kind for kind, _, _ in manifests(path)}
        return "cuts" in kinds or {"recordings", "supervisions"} <= kinds
    return path.endswith(ENDINGS) and read_kind(path) in ("cuts", "recordings")


def read_kind(path: str) -> str:
    """The kind of a manifest, from its first line; empty if it is not lhotse's."""
    try:
        first = next((line for _, line in lines(path) if isinstance(line, dict)), {})
    except (UserError, OSError):
        return ""
    if "recording" in first or ("supervisions" in first and "start" in first):
        return "cuts"
    if "sources" in first and "sampling_rate" in first:
        return "recordings"
    return "supervisions" if "recording_id" in first else ""


def manifests(folder: str) -> list[tuple[str, str, str]]:
    """Kind, split and path of each manifest in a folder."""
    found = []
    for name in sorted(os.listdir(folder)):
        match = NAME.match(name)
        if match and read_kind(os.path.join(folder, name)) == match[1]:
            found.append((match[1], match[2] or "", os.path.join(folder, name)))
    return found


def items(source: Source) -> Found:
    if os.path.isdir(source.path):
        found = manifests(source.path)
    else:
        match = NAME.match(os.path.basename(source.path))
        found = [(read_kind(source.path), match[2] or "" if match else "", source.path)]
        if found[0][0] == "recordings":
            parent, file = os.path.split(source.path)
            supervisions_file = os.path.join(parent, file.replace("recordings", "supervisions"))
            found += [("supervisions", found[0][1], supervisions_file)] if os.path.isfile(supervisions_file) else []
    cuts = [(split, path) for kind, split, path in found if kind == "cuts"]
    for split, path in cuts:
        for number, cut in lines(path):
            yield from locate_refusal(path, number, cut if isinstance(cut, str) else read_cut(cut, split, path))
    if cuts:
        return
    supervisions: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for kind, split, path in found:
        for number, line in lines(path) if kind == "supervisions" else ():
            if isinstance(line, str):
                yield f"{show_path(path)} line {number}: {line}"
            else:
                supervisions[split, str(line.get("recording_id"))].append(line)
    for kind, split, path in found:
        for number, line in lines(path) if kind == "recordings" else ():
            if isinstance(line, str):
                yield f"{show_path(path)} line {number}: {line}"
                continue
            cut = {"id": line.get("id"), "recording": line, "start": 0, "duration": line.get("duration")}
            cut |= {"supervisions": supervisions.pop((split, str(line.get("id"))), [])}
            yield from locate_refusal(path, number, read_cut(cut, split, path))
    for (_, recording), left in supervisions.items():
        name = left[0].get("id")
        yield f"{show_path(source.path)}: {name} belongs to {recording}, which is in no recordings manifest"


def locate_refusal(path: str, number: int, found: list[Item] | str) -> Found:
    if isinstance(found, str):
        yield f"{show_path(path)} line {number}: {found}"
    else:
        yield from found


def read_cut(cut: dict[str, Any], split: str, path: str) -> list[Item] | str:
    """One item per supervision of a cut, or the cut itself if it has none or one that spans it.

    Lhotse makes the same items with `trim_to_supervisions`.
    """
    try:
        return parse_cut(cut, split, path)
    except SURPRISES as error:
        return f"{cut.get('id')}: a field has another type than in lhotse's manifests ({shorten(str(error))})"


def parse_cut(cut: dict[str, Any], split: str, path: str) -> list[Item] | str:
    name, recording = cut.get("id"), cut.get("recording")
    if cut.get("type", "MonoCut") not in ("MonoCut", "MultiCut") or not isinstance(recording, dict):
        kind = cut.get("type", "cut")
        return f"{name} is a {kind} without its own recording: only cuts of single recordings can be read"
    place = recording_place(recording, cut, path)
    if isinstance(place, str):
        return f"{name}: {place}"
    try:
        start, duration = float(cut.get("start") or 0.0), float(cut["duration"])
        spoken = cut.get("supervisions") or []
        whole = [Item(place, escape_text(str(name)), start, duration, split=split)]
        if not spoken:
            return whole
        if len(spoken) == 1 and duration - float(spoken[0]["duration"]) <= ROUNDING:
            return [add_labels(whole[0], spoken[0])]
        parts = []
        for part in spoken:
            stretch = (start + float(part.get("start") or 0.0), float(part["duration"]))
            parts.append(add_labels(Item(place, escape_text(str(part.get("id"))), *stretch, split=split), part))
        return parts
    except (KeyError, TypeError, ValueError, OverflowError):
        return f"{name}: start or duration is not a number"


def add_labels(item: Item, supervision: dict[str, Any]) -> Item:
    """Add the labels of a supervision to an item."""
    custom = supervision.get("custom")
    labels = {key: value for key, value in (custom if isinstance(custom, dict) else {}).items() if value is not None}
    labels |= {"language": supervision["language"]} if supervision.get("language") else {}
    texts = [escape_text(str(supervision.get(key) or "")) for key in ("text", "speaker", "gender")]
    return item._replace(
        text=texts[0],
        speaker=texts[1],
        sex=texts[2][:1].upper(),
        labels=pack_labels(labels),
    )


def recording_place(recording: dict[str, Any], cut: dict[str, Any], path: str) -> ByteRange | str:
    """The file of a recording, or the reason why it cannot be read."""
    if recording.get("transforms"):
        return "its recording has transforms, which only lhotse can apply: save the transformed audio"
    sources = recording.get("sources") or []
    if len(sources) != 1:
        return f"its recording has {len(sources)} sources instead of one file"
    kind, source = sources[0].get("type"), str(sources[0].get("source"))
    if kind == "command":
        return f"its recording is the output of a command ({source[:60]}), which is not run: save its audio"
    if kind not in ("file", "url"):
        return f"its recording has the type {kind!r}: only files and URLs can be read"
    channels = sources[0].get("channels") or [0]
    taken = cut.get("channel", channels)
    if len(channels) > 1 and sorted(taken if isinstance(taken, list) else [taken]) != sorted(channels):
        return "it is one of several channels: write it to a separate file"
    if kind == "url":
        return ByteRange(source)
    found = find_file(source, str(Path(path).parent))
    return ByteRange(found) if found else f"there is no {show_path(source)}"
