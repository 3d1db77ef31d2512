"""Bounds on settings, declared with the field: `steps: Annotated[int, COUNT] = 400_000`."""

import dataclasses
import math
import sys
import typing
from dataclasses import dataclass
from typing import Any

from sjepa.errors import UserError


@dataclass(frozen=True)
class Bound:
    """The values that a numeric field accepts; infinity and NaN are never among them."""

    low: float
    high: float
    words: str
    """What is wrong with a value outside, as the end of a sentence."""

    def accepts(self, value: float) -> bool:
        return math.isfinite(value) and self.low <= value <= self.high


class CadenceBound(Bound):
    """A whole number of steps, or a fraction of the phase if it has a decimal point."""

    def accepts(self, value: float) -> bool:
        return self.low <= value <= (1.0 if isinstance(value, float) else self.high)


SMALLEST, LARGEST = sys.float_info.min, sys.float_info.max
COUNT = Bound(1, 2**40, "it should be greater than 0 (and at most 2^40)")
SIZE = Bound(1, 2**16, "it should be greater than 0 (and at most 65,536)")
INDEX = Bound(0, 2**40, "it should not be below 0 (nor above 2^40)")
POSITIVE = Bound(SMALLEST, LARGEST, "it should be greater than 0")
NOT_NEGATIVE = Bound(0, LARGEST, "it should not be below 0")
SHARE = Bound(0, 1, "it should lie between 0 and 1")
WORKERS = Bound(0, 1024, "it should lie between 0 and 1,024")
TEMPERATURE = Bound(1e-3, 1e3, "it should lie between 0.001 and 1,000")
DECIBELS = Bound(-200, 200, "it should lie between -200 and 200 dB")
SEED = Bound(0, 2**63 - 1, "a seed is not below 0 (nor above 2^63)")
CADENCE = CadenceBound(0, 2**40, "a fraction of the phase lies between 0 and 1; whole numbers are steps")


def check_bounds(settings: Any, prefix: str) -> None:
    """Refuse values of a dataclass that lie outside the bounds of their fields; `prefix` stands before their names."""
    hints = typing.get_type_hints(type(settings), include_extras=True)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        bounds = [b for b in getattr(hints[field.name], "__metadata__", ()) if isinstance(b, Bound)]
        for item in value if isinstance(value, tuple) else (value,):
            for bound in bounds:
                if item is not None and not bound.accepts(item):
                    raise UserError(f"{prefix}{field.name} = {item}: {bound.words}")
