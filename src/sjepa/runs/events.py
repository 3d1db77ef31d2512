"""Read the log of a run: its events, and facts that follow from several events."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sjepa.errors import UserError
from sjepa.fields import FLAG, NUMBER, TEXT, WHOLE, Kind, check_fields, list_of, optional, require, table_of

Event = dict[str, Any]

DEAD_SHARE = 0.01  # a component with less than this part of an even share of the frames is dead

MAYBE = optional(NUMBER)
ALARM = Kind(
    "a code with a message", lambda value: table_of(TEXT).accepts(value) and {"code", "message"} <= value.keys()
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
    **dict.fromkeys(("kl_training", "kl_held_out", "accuracy_training", "accuracy_held_out"), MAYBE),
}
# Required fields of each kind of event.
NEEDED = {
    "phase": ("phase", "k", "targets"),
    "layers": ("effective_ranks", "smoothed"),
    "clusters": ("phase", "share"),
    "held_out": ("phase", "accuracy_training", "accuracy_held_out"),
}


def read_events(log: Path) -> list[Event]:
    """Read all events of a log. NaN and infinity are read as missing."""
    if not log.is_file():
        raise UserError(f"{log.parent} has no {log.name}: give the folder of a run that has started")
    try:
        text = log.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{log} is not text: {error}") from error
    whole, _, _ = text.rpartition("\n")  # a running process may have written part of the next line
    return [
        parse_event(line, f"{log}, line {number}") for number, line in enumerate(whole.split("\n"), 1) if line.strip()
    ]


def last_event(log: Path, kind: str) -> Event | None:
    """Return the newest event of a kind, or None if the last megabyte of the log has none."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        size = file.seek(0, 2)
        for tail in (2**14, 2**17, 2**20):
            file.seek(max(0, size - tail))
            whole, _, _ = file.read().rpartition(b"\n")
            lines = whole.split(b"\n")[(size > tail) :]  # the first line may be incomplete
            for line in reversed([line for line in lines if f'"{kind}"'.encode() in line]):
                event = parse_event(line.decode(errors="replace"), str(log))
                if event["event"] == kind:
                    return event
            if size <= tail:
                break
    return None


def parse_event(line: str, where: str) -> Event:
    """Parse a line of the log and check its fields."""
    try:
        event = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise UserError(f"{where} is not an object")
    for name in ("event", "step", *NEEDED.get(str(event.get("event")), ())):
        require(event, name, FIELDS[name], where)
    check_fields(event, FIELDS, where)
    return event


def select_events(events: Sequence[Event], kind: str) -> list[Event]:
    """Return the events of one kind: data, phase, train, layers, clusters, held_out or stopped."""
    return [event for event in events if event.get("event") == kind]


def last_step(events: Sequence[Event]) -> int:
    return max(event["step"] for event in events)


def phase_spans(events: Sequence[Event]) -> list[tuple[int, int, int]]:
    """Return number, first and last step of every phase so far."""
    begun = select_events(events, "phase")
    if not begun:
        return []
    ends = [phase["step"] for phase in begun[1:]] + [last_step(events)]
    return [(phase["phase"], phase["step"], end) for phase, end in zip(begun, ends, strict=True)]


def phase_start(events: Sequence[Event], phase: int) -> int:
    """Return the step after which a phase started."""
    return next((event["step"] for event in select_events(events, "phase") if event["phase"] == phase), 0)


def active_layers(events: Sequence[Event]) -> list[tuple[int, int, int, bool]]:
    """Return intervals (start, end, layer, used): the layer with the highest rank, and whether targets read it."""
    intervals: list[tuple[int, int, int, bool]] = []
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
        if intervals and intervals[-1][1:] == (event["step"], layer, used):
            intervals[-1] = (intervals[-1][0], end, layer, used)
        else:
            intervals.append((event["step"], end, layer, used))
    return intervals


def decay_switches(events: Sequence[Event]) -> list[tuple[int, float]]:
    """Return the steps of changes of the target encoder's decay, to the nearest logged line, and the new decay."""
    used = [line for line in select_events(events, "train") if line.get("decay") is not None]
    return [(a["step"], b["decay"]) for a, b in pairwise(used) if a["decay"] != b["decay"]]


def schedule_ends(events: Sequence[Event]) -> dict[int, list[str]]:
    """Return the steps at which the visible loss or augmentation ended, to the nearest logged line."""
    watched = {"visible_loss": "visible loss", "augmented": "augmentation"}
    found: dict[int, list[str]] = {}
    for before, after in pairwise(select_events(events, "train")):
        ended = [word for key, word in watched.items() if before.get(key) and not after.get(key)]
        if ended:
            found[before["step"]] = ended
    return found


def find_metric(line: Event, name: str) -> Any:
    """Return a metric of a line of the log, or of its speed. None if the line has neither."""
    return line.get(name, (line.get("speed") or {}).get(name))


def seconds_trained(events: Sequence[Event]) -> float:
    """Return the time of all logged training intervals, also of earlier starts of the run."""
    return sum(find_metric(line, "seconds") or 0.0 for line in select_events(events, "train"))


def audio_seconds(events: Sequence[Event]) -> float:
    """Return the seconds of audio that all logged training intervals processed, including repetitions."""
    speeds = [
        (find_metric(line, "audio_per_second"), find_metric(line, "seconds")) for line in select_events(events, "train")
    ]
    return sum(rate * seconds for rate, seconds in speeds if rate is not None and seconds is not None)
