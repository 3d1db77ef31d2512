"""The log of a run: its events as they were written, and what follows from several of them."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sjepa.errors import UserError
from sjepa.fields import FLAG, NUMBER, TEXT, WHOLE, Kind, check_fields, list_of, optional, require, table_of

Event = dict[str, Any]

MAYBE = optional(NUMBER)
ALARM = Kind(
    "text, or a code with a message",
    lambda value: isinstance(value, str) or (table_of(TEXT).accepts(value) and {"code", "message"} <= value.keys()),
)
SPEED = Kind(
    "an object of numbers with seconds and audio_per_second",
    lambda value: (
        table_of(MAYBE).accepts(value)
        and all(NUMBER.accepts(value.get(name)) for name in ("seconds", "audio_per_second"))
    ),
)
FIELDS: dict[str, Kind] = {
    "event": TEXT,
    "step": WHOLE,
    "phase": WHOLE,
    "k": WHOLE,
    "targets": TEXT,
    "epoch": optional(WHOLE),
    "active_layer": optional(WHOLE),
    "dead_components": optional(WHOLE),
    "skipped_steps": optional(WHOLE),
    "utterances": optional(WHOLE),
    "visible_loss": optional(FLAG),
    "augmented": optional(FLAG),
    "share": list_of(NUMBER),
    "smoothed": list_of(NUMBER),
    "effective_ranks": list_of(NUMBER),
    "effective_rank": optional(list_of(NUMBER)),
    "alarms": optional(list_of(ALARM)),
    "speed": optional(SPEED),
    **dict.fromkeys(("loss", "kl_masked", "kl_visible", "kl_encoder", "lr", "gradient_norm", "decay", "hours"), MAYBE),
    **dict.fromkeys(("accuracy_masked", "accuracy_visible", "crop_loss"), MAYBE),
    **dict.fromkeys(("target_entropy", "predictor_entropy", "target_perplexity"), MAYBE),
}
# Fields that an event of a kind must have.
NEEDED = {
    "phase": ("phase", "k", "targets"),
    "layers": ("effective_ranks", "smoothed"),
    "clusters": ("phase", "share"),
}


def read_events(log: Path) -> list[Event]:
    """All events of a log; what is not a finite number is read as missing."""
    if not log.is_file():
        raise UserError(f"{log.parent} has no {log.name}: give the directory of a run that has begun")
    try:
        text = log.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{log} is not text: {error}") from error
    whole, _, _ = text.rpartition("\n")  # a run that is writing may have begun its next line
    return [
        parse_event(line, f"{log}, line {number}") for number, line in enumerate(whole.split("\n"), 1) if line.strip()
    ]


def last_event(log: Path, kind: str) -> Event | None:
    """The newest event of a kind, read from the end of the log; none if there is none in its last megabyte."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        size = file.seek(0, 2)
        for tail in (2**14, 2**17, 2**20):
            file.seek(max(0, size - tail))
            whole, _, _ = file.read().rpartition(b"\n")
            lines = whole.split(b"\n")[(size > tail) :]  # the first may be part of a line
            for line in reversed([line for line in lines if f'"{kind}"'.encode() in line]):
                event = parse_event(line.decode(errors="replace"), str(log))
                if event["event"] == kind:
                    return event
            if size <= tail:
                break
    return None


def parse_event(line: str, where: str) -> Event:
    try:
        event = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise UserError(f"{where} is not an object")
    if "ranks" in event:  # effective_ranks in older logs
        event["effective_ranks"] = event.pop("ranks")
    for name in ("event", "step", *NEEDED.get(str(event.get("event")), ())):
        require(event, name, FIELDS[name], where)
    check_fields(event, FIELDS, where)
    return event


def select_events(events: Sequence[Event], kind: str) -> list[Event]:
    """Events of one kind: data, phase, train, layers, clusters or stopped."""
    return [event for event in events if event.get("event") == kind]


def last_step(events: Sequence[Event]) -> int:
    return max(event["step"] for event in events)


def phase_spans(events: Sequence[Event]) -> list[tuple[int, int, int]]:
    """Number, first and last step of every phase so far; none if the log has no line of any phase's start."""
    begun = select_events(events, "phase")
    if not begun:
        return []
    ends = [phase["step"] for phase in begun[1:]] + [last_step(events)]
    return [(phase["phase"], phase["step"], end) for phase, end in zip(begun, ends, strict=True)]


def phase_start(events: Sequence[Event], phase: int) -> int:
    """The step after which a phase began."""
    return next((event["step"] for event in select_events(events, "phase") if event["phase"] == phase), 0)


def active_layers(events: Sequence[Event]) -> list[tuple[int, int, int, bool]]:
    """Stretches (start, end, layer, used): the layer with the highest rank, and whether the targets read it."""
    stretches: list[tuple[int, int, int, bool]] = []
    used, known = False, [event for event in events if event.get("event") in ("phase", "layers")]
    if not known:
        return []
    ends = [event["step"] for event in known[1:]] + [last_step(events)]
    for event, end in zip(known, ends, strict=True):
        layer = event.get("active_layer")
        if event["event"] == "phase":
            used = layer is not None
        if layer is None or end == event["step"]:
            continue
        if stretches and stretches[-1][1:] == (event["step"], layer, used):
            stretches[-1] = (stretches[-1][0], end, layer, used)
        else:
            stretches.append((event["step"], end, layer, used))
    return stretches


def decay_switches(events: Sequence[Event]) -> list[tuple[int, float]]:
    """Steps, to the nearest logged line, at which the target encoder's decay changed, and what it became."""
    used = [line for line in select_events(events, "train") if line.get("decay") is not None]
    return [(a["step"], b["decay"]) for a, b in pairwise(used) if a["decay"] != b["decay"]]


def schedule_ends(events: Sequence[Event]) -> dict[int, list[str]]:
    """Steps at which the visible loss or augmentation ended, to the nearest logged line."""
    watched = {"visible_loss": "visible loss", "augmented": "augmentation"}
    found: dict[int, list[str]] = {}
    for before, after in pairwise(select_events(events, "train")):
        ended = [word for key, word in watched.items() if before.get(key) and not after.get(key)]
        if ended:
            found[before["step"]] = ended
    return found
