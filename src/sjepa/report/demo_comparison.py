"""The demo's comparison of the trained encoder with other systems, for its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a system is in the comparison. Charts colour its bar accordingly."""

    OURS = "ours"
    EARLIER = "earlier"
    BASELINE = "baseline"


@dataclass(frozen=True)
class ProbedSystem:
    """Accuracy of a linear probe on the features of one system."""

    name: str
    role: Role
    accuracy: float
    deviation: float
    """Standard deviation over splits."""


@dataclass(frozen=True)
class ProbedTask:
    """One probe with the scores of every system. One system has the role `ours`."""

    name: str
    systems: Sequence[ProbedSystem]
    chance: float
    about: str

    @property
    def ours(self) -> ProbedSystem:
        return next(system for system in self.systems if system.role is Role.OURS)

    @property
    def others(self) -> list[ProbedSystem]:
        return [system for system in self.systems if system.role is not Role.OURS]


@dataclass(frozen=True)
class DemoComparison:
    """Scores of every task, and texts that explain them."""

    tasks: Sequence[ProbedTask] = ()
    introduction: Sequence[str] = ()
    meaning: Sequence[str] = ()
    """What each headline number means."""
    next_steps: Mapping[str, str] = field(default_factory=dict)
    """Commands to run next, by what they do."""
