"""The windows in which long recordings are encoded. No torch, so that the command line answers quickly."""

from dataclasses import dataclass
from typing import Annotated

from sjepa.audio.frames import FRAMES_PER_SECOND, sample_count
from sjepa.bounds import LENGTH, check_bounds
from sjepa.errors import UserError

MARGIN = 75  # frames dropped at an inner edge; the position encoding of the paper reaches 64 frames


@dataclass(frozen=True)
class WindowConfig:
    """Windows of long recordings."""

    # With english-compact, units of 15 s windows agree better with phones than those of 30 s: see docs/embed.md.
    seconds: Annotated[float, LENGTH] = 15.0
    """Length of a window. Shorter recordings are encoded whole. Memory grows with it."""
    overlap: Annotated[float, LENGTH] = 5.0
    """Seconds that neighbouring windows share, at least 3.02: 1.5 s at each edge are dropped, the rest is faded."""

    def __post_init__(self) -> None:
        check_bounds(self, "window.")
        if self.shared <= 2 * MARGIN:
            least = 2 * MARGIN / FRAMES_PER_SECOND
            raise UserError(f"window.overlap: {self.overlap:g} s are too short; windows must share more than {least} s")
        if self.frames < 2 * self.shared:
            raise UserError(f"window.seconds: {self.seconds:g} s is less than twice the overlap, {self.overlap:g} s")

    @property
    def frames(self) -> int:
        return round(self.seconds * FRAMES_PER_SECOND)

    @property
    def shared(self) -> int:
        """Frames that neighbouring windows share."""
        return round(self.overlap * FRAMES_PER_SECOND)

    @property
    def samples(self) -> int:
        """Samples of a window."""
        return sample_count(self.frames)
