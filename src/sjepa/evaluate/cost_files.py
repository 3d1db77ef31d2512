"""The files of `sjepa cost`, as columns of a table. Needs no torch."""

from collections.abc import Iterable
from pathlib import Path

from sjepa.counts import format_count
from sjepa.fields import NUMBER, TABLE, TEXT, WHOLE, check_fields, optional, require
from sjepa.files import read_json

FILE = "cost.json"
FIELDS = {"macs_per_second": optional(NUMBER), "threads": WHOLE, "seconds": NUMBER, "cpu_ms": NUMBER, "encoder": TABLE}
ENCODER_KEYS = ("name", "fingerprint")

Costs = dict[tuple[str, str], dict[str, float]]
"""Maps name and fingerprint of an encoder to its columns."""


def find_costs(places: Iterable[Path]) -> Costs:
    """Find the costs of encoders below some folders, as columns of a table."""
    found: Costs = {}
    for place in places:
        for file in sorted(place.rglob(FILE)) if place.is_dir() else ():
            cost, where = read_json(file), str(file)
            if not FIELDS.keys() <= cost.keys():
                continue  # a file of another program
            check_fields(cost, FIELDS, where)
            columns = {} if cost["macs_per_second"] is None else {"GMACs per s": cost["macs_per_second"] / 1e9}
            columns[f"CPU ms ({cost['seconds']:g} s, {format_count(cost['threads'], 'thread')})"] = cost["cpu_ms"]
            name, fingerprint = (require(cost["encoder"], key, TEXT, f"{where}: encoder") for key in ENCODER_KEYS)
            found.setdefault((name, fingerprint), {}).update(columns)
    return found
