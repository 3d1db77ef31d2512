"""Metrics and the sections of a table: what a number is called, whether more of it is better, where it stands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Better(StrEnum):
    """Which values of a metric are better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class SectionKind(StrEnum):
    """The sections of a table, in their order. A task names its own; the lite protocol of every task stands in LITE."""

    SUPERB = "superb"
    OTHER = "other"
    LITE = "lite"
    PROBES = "probes"
    UNITS = "units"


@dataclass(frozen=True)
class Metric:
    name: str
    better: Better = Better.HIGHER
    digits: int = 2
    score: Callable[[Sequence[Any], Sequence[Any]], float] | None = field(default=None, repr=False, compare=False)
    """Predictions and references to the metric's value. A task that scores in another way leaves it out."""

    @property
    def lower(self) -> bool:
        return self.better is Better.LOWER

    def best(self, values: Sequence[float]) -> float | None:
        """The best of some values, if the metric tells which that is."""
        if self.better is Better.NEITHER or not values:
            return None
        return min(values) if self.lower else max(values)


def column_name(task: str, metric: str, decoder: str = "") -> str:
    """The column of a table that holds a task's metric, decoded greedily or with a language model."""
    return f"{task}+lm ({decoder}) {metric}" if decoder else f"{task} {metric}"
