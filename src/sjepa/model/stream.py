"""Features of a live stream, in chunks with a fixed look-ahead.

The encoder is not causal: its first norm spans the recording, its position encoding sees 1.3 s to each side at the
paper's size, and attention sees everything. A stream therefore fixes what each frame may see. Frames come out in
chunks. A chunk is computed from the frames of a window: some context before it, the chunk, and the look-ahead after it.
The convolutional front end runs once over the audio. Its norm uses the statistics of all audio up to the end of the
look-ahead. Results do not depend on the sizes of the blocks in which audio arrives.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sjepa.bounds import INTERVAL, START, check_bounds
from sjepa.errors import UserError
from sjepa.model.encoder import EncoderNetwork
from sjepa.model.frontend import FRAMES_PER_SECOND, STRIDE, frame_count, samples_of
from sjepa.model.moments import RunningMoments


@dataclass(frozen=True)
class StreamConfig:
    """What a live stream's frames see, in seconds; they are multiples of 20 ms."""

    chunk: Annotated[float, INTERVAL] = 1.28
    """Audio whose frames come out together. Short chunks cost more computation."""
    look_ahead: Annotated[float, START] = 0.64
    """Audio after a chunk that its frames see. Longer is closer to the features of the whole recording."""
    context: Annotated[float, START] = 2.0
    """Audio before a chunk that its frames see."""

    def __post_init__(self) -> None:
        check_bounds(self, "stream.")
        if self.frames(self.chunk) < 1:
            raise UserError(f"stream.chunk: {self.chunk:g} s are less than one frame, 0.02 s")

    @staticmethod
    def frames(seconds: float) -> int:
        return round(seconds * FRAMES_PER_SECOND)

    @property
    def latency(self) -> float:
        """Seconds from the audio of a chunk's first frame until the frame can be computed."""
        return (self.frames(self.chunk) + self.frames(self.look_ahead)) / FRAMES_PER_SECOND


class FeatureStream:
    """The encoder on a live stream; `Encoder.stream` makes one.

    `push` takes the next samples (float32 at 16 kHz) and returns the frames (n, D) that they complete; `finish` returns
    the frames that are left. Together they are as many as for the whole recording.
    """

    def __init__(self, encoder: EncoderNetwork, config: StreamConfig, states: tuple[int, ...]):
        self.encoder, self.config, self.states = encoder, config, states
        self.moments = RunningMoments()
        self.waiting = np.zeros(0, np.float32)  # samples that are not heard yet
        self.heard = np.zeros(0, np.float32)  # samples from frame `convolved` on
        self.features: Tensor | None = None  # of the front end, for the frames before `convolved`
        self.convolved = 0
        self.done = 0  # frames that came out
        self.samples = 0  # heard in all

    def push(self, samples: np.ndarray) -> Tensor:
        """Frames (n, D) that are complete with these samples; often none."""
        self.waiting = np.concatenate([self.waiting, np.asarray(samples, np.float32)])
        chunk, ahead = self.config.frames(self.config.chunk), self.config.frames(self.config.look_ahead)
        out = [self.empty()]
        while (needed := samples_of(self.done + chunk + ahead) - self.samples) <= len(self.waiting):
            self.hear(needed)
            out.append(self.emit(chunk, self.done + chunk + ahead))
        return torch.cat(out)

    def finish(self) -> Tensor:
        """The frames that are left once the stream has ended."""
        self.hear(len(self.waiting))
        frames = frame_count(self.samples)
        return self.emit(frames - self.done, frames) if frames > self.done else self.empty()

    def feed(self, blocks: Iterable[np.ndarray]) -> Iterator[Tensor]:
        """Frames of a stream that arrives in blocks, as soon as they are there."""
        for block in blocks:
            frames = self.push(block)
            if len(frames):
                yield frames
        yield self.finish()

    def hear(self, count: int) -> None:
        """Take so many waiting samples into the statistics."""
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.moments.add(taken)
        self.heard = np.concatenate([self.heard, taken])
        self.samples += len(taken)

    @torch.inference_mode()
    def emit(self, count: int, end: int) -> Tensor:
        """The next frames, which see frames up to `end`."""
        new = end - self.convolved
        parts = [] if self.features is None else [self.features]
        if new:  # none at the end of a stream whose last frame the look-ahead has reached
            device = next(self.encoder.parameters()).device
            waveform = torch.from_numpy(self.heard[: samples_of(new)])[None].to(device)
            parts.append(self.encoder.convolve(waveform, moments=self.moments.read(device)))
            self.heard, self.convolved = self.heard[new * STRIDE :], end
        window = torch.cat(parts, dim=1)
        hidden = self.encoder.transform(window, until=max(self.states) - 1).hidden_states
        first = end - window.shape[1]  # frame of the recording at which the window starts
        place = slice(self.done - first, self.done - first + count)
        self.done += count
        kept = max(0, self.done - self.config.frames(self.config.context)) - first
        self.features = window[:, kept:]
        return torch.cat([hidden[state][0, place] for state in self.states], dim=-1)

    def empty(self) -> Tensor:
        weight = next(self.encoder.parameters())
        return weight.new_zeros(0, len(self.states) * self.encoder.config.hidden_size)
