"""Bounds of settings, declared with the field: `steps: Annotated[int, COUNT] = 400_000`."""

import dataclasses
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sjepa.errors import UserError


@dataclass(frozen=True)
class Bound:
    """The values that a numeric field accepts. Infinity and NaN are never accepted."""

    low: float
    high: float
    words: str
    """The end of the error message for a value outside the bounds."""

    def accepts(self, value: float) -> bool:
        return self.low <= value <= self.high  # NaN compares false, and infinity exceeds every bound


class OptionalBound(Bound):
    """The same, or 0, which means the default."""

    def accepts(self, value: float) -> bool:
        return value == 0 or super().accepts(value)


class CadenceBound(Bound):
    """A whole number of steps, or a fraction of the phase if it has a decimal point."""

    def accepts(self, value: float) -> bool:
        return self.low <= value <= (1.0 if isinstance(value, float) else self.high)


SMALLEST, LARGEST = sys.float_info.min, sys.float_info.max
COUNT = Bound(1, 2**40, "it should be greater than 0 (and at most 2^40)")
SIZE = Bound(1, 2**16, "it should be greater than 0 (and at most 65,536)")
LAYERS = Bound(1, 1024, "it should be greater than 0 (and at most 1,024)")
INDEX = Bound(0, 2**40, "it should not be below 0 (nor above 2^40)")
POSITIVE = Bound(SMALLEST, LARGEST, "it should be greater than 0")
NOT_NEGATIVE = Bound(0, LARGEST, "it should not be below 0")
SHARE = Bound(0, 1, "it should lie between 0 and 1")
WORKERS = Bound(0, 1024, "it should lie between 0 and 1,024")
TEMPERATURE = Bound(1e-3, 1e3, "it should be greater than 0 (0.001 to 1,000)")
DECIBELS = Bound(-200, 200, "it should lie between -200 and 200 dB")
SEED = Bound(0, 2**63 - 1, "a seed is not below 0 (nor above 2^63 - 1)")
LEARNING_RATE = Bound(SMALLEST, 1e6, "a learning rate is a finite number above 0 (and at most 10^6)")
AMOUNT = Bound(1e-9, 1e12, "it should be greater than 0 (and at most 10^12)")
LENGTH = Bound(0.1, 3600, "it should lie between 0.1 and 3,600 seconds")
START = Bound(0, 1e9, "it should lie between 0 and 10^9 seconds")
CUT = Bound(1, 100_000, "it should lie between 1 and 100,000 seconds")
INTERVAL = Bound(0.01, 86_400, "it should lie between 0.01 and 86,400 seconds")
SHARD_HOURS = Bound(1e-4, 1e4, "it should lie between 0.0001 and 10,000 hours")
LENGTH_OR_DEFAULT = OptionalBound(0.1, 3600, "it should be 0 (the default), or lie between 0.1 and 3,600 seconds")
SIZE_OR_DEFAULT = OptionalBound(1, 2**16, "it should be 0 (the default), or lie between 1 and 65,536")
GIGABYTES = Bound(0, 1e6, "it should lie between 0 and 10^6 GB")
PROCESSES = Bound(1, 1024, "it should lie between 1 and 1,024")
CADENCE = CadenceBound(0, 2**40, "a fraction of the phase lies between 0 and 1; whole numbers are steps")


def find_out_of_bounds(settings: Any) -> Iterator[tuple[str, Any, Bound]]:
    """Yield name, value and bound of each field of a dataclass whose value is out of bounds."""
    hints = typing.get_type_hints(type(settings), include_extras=True)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        bounds = [b for b in getattr(hints[field.name], "__metadata__", ()) if isinstance(b, Bound)]
        for item in value if isinstance(value, tuple) else (value,):
            for bound in bounds:
                if item is not None and not bound.accepts(item):
                    yield field.name, item, bound


def check_bounds(settings: Any, prefix: str) -> None:
    """Raise UserError if a setting is out of bounds. `prefix` precedes its name in the message."""
    for name, value, bound in find_out_of_bounds(settings):
        raise UserError(f"{prefix}{name} = {value}: {bound.words}")


def check_options(command: Any) -> None:
    """Raise UserError if an option of a command is out of bounds."""
    for name, value, bound in find_out_of_bounds(command):
        given = f"{value:g}" if isinstance(value, float) else str(value)
        raise UserError(f"--{name.replace('_', '-')} {given}: {bound.words}")
