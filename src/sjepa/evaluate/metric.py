"""Metrics and the sections of a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Better(StrEnum):
    """Which values of a metric are better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class DecoderName(StrEnum):
    """Settings of decoding with a language model, in results and in the columns of tables."""

    PAPER = "paper"
    """Those of the S-JEPA paper."""
    BOARD = "board"
    """Those of the SUPERB leaderboard."""


class SectionKind(StrEnum):
    """The sections of a table, in order. Each task names its section. Lite results of all tasks go to LITE."""

    SUPERB = "superb"
    OTHER = "other"
    LITE = "lite"
    PROBES = "probes"
    UNITS = "units"


@dataclass(frozen=True)
class Metric:
    """Name, direction and number format of a metric."""

    name: str
    better: Better = Better.HIGHER
    digits: int = 2
    score: Callable[[Sequence[Any], Sequence[Any]], float] | None = field(default=None, repr=False, compare=False)
    """Maps predictions and references to the value. None if the task computes it in another way."""

    @property
    def lower(self) -> bool:
        return self.better is Better.LOWER

    def best(self, values: Sequence[float]) -> float | None:
        """Return the best value, or None if the metric has no direction."""
        if self.better is Better.NEITHER or not values:
            return None
        return min(values) if self.lower else max(values)


def column_name(task: str, metric: str, decoder: str = "") -> str:
    """Return the table column of a task's metric, for greedy decoding or a language model `decoder`."""
    return f"{task}+lm ({decoder}) {metric}" if decoder else f"{task} {metric}"
