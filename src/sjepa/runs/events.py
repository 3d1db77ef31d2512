"""The log of a run: its events as they were written, and what follows from several of them."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sjepa.errors import UserError

Event = dict[str, Any]


def read_events(log: Path) -> list[Event]:
    """All events of a log; what is not a finite number is read as missing."""
    if not log.is_file():
        raise UserError(f"{log.parent} has no {log.name}: give the directory of a run that has begun")
    whole, _, _ = log.read_text("utf-8").rpartition("\n")  # a run that is writing may have begun its next line
    return [parse_event(line, f"{log}, line {number}") for number, line in enumerate(whole.splitlines(), 1)]


def parse_event(line: str, where: str) -> Event:
    try:
        event = json.loads(line, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    if "ranks" in event:  # effective_ranks in older logs
        event["effective_ranks"] = event.pop("ranks")
    return event


def select_events(events: Sequence[Event], kind: str) -> list[Event]:
    """Events of one kind: data, phase, train, layers, clusters or stopped."""
    return [event for event in events if event.get("event") == kind]


def last_step(events: Sequence[Event]) -> int:
    return max(event["step"] for event in events)


def phase_spans(events: Sequence[Event]) -> list[tuple[int, int, int]]:
    """Number, first and last step of every phase so far."""
    begun = select_events(events, "phase")
    ends = [phase["step"] for phase in begun[1:]] + [last_step(events)]
    return [(phase["phase"], phase["step"], end) for phase, end in zip(begun, ends, strict=True)]


def phase_start(events: Sequence[Event], phase: int) -> int:
    """The step after which a phase began."""
    return next((event["step"] for event in select_events(events, "phase") if event["phase"] == phase), 0)


def active_layers(events: Sequence[Event]) -> list[tuple[int, int, int, bool]]:
    """Stretches (start, end, layer, used): the layer with the highest rank, and whether the targets read it."""
    stretches: list[tuple[int, int, int, bool]] = []
    used, known = False, [event for event in events if event.get("event") in ("phase", "layers")]
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
