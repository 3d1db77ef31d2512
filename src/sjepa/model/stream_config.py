"""The audio that a frame of a live stream sees. No torch, so that the command line answers quickly."""

from dataclasses import dataclass
from typing import Annotated

from sjepa.audio.frames import FRAMES_PER_SECOND
from sjepa.bounds import INTERVAL, START, check_bounds
from sjepa.errors import UserError


@dataclass(frozen=True)
class StreamConfig:
    """The audio that each frame of a live stream sees, in seconds, in multiples of 20 ms."""

    chunk: Annotated[float, INTERVAL] = 1.28
    """Audio whose frames are computed together. Short chunks need more computation."""
    look_ahead: Annotated[float, START] = 0.64
    """Audio after a chunk that its frames see. With more, features are closer to those of the whole recording."""
    context: Annotated[float, START] = 2.0
    """Audio before a chunk that its frames see."""

    def __post_init__(self) -> None:
        check_bounds(self, "stream.")
        if self.frames(self.chunk) < 1:
            raise UserError(f"stream.chunk: {self.chunk:g} s is less than one frame (0.02 s); give a longer chunk")

    @staticmethod
    def frames(seconds: float) -> int:
        return round(seconds * FRAMES_PER_SECOND)

    @property
    def latency(self) -> float:
        """Seconds from the audio of a chunk's first frame until the frame can be computed."""
        return (self.frames(self.chunk) + self.frames(self.look_ahead)) / FRAMES_PER_SECOND
