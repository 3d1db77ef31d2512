"""Features of a live stream, in chunks with a fixed look-ahead.

The encoder is not causal: its first norm spans the recording, its position encoding sees 1.3 s to each side at the
paper's size, and attention sees everything. A stream therefore limits what each frame sees. Frames are computed in
chunks, from a window with some context before the chunk and the look-ahead after it. The feature extractor processes
the audio once. Its norm uses the statistics of all audio up to the end of the look-ahead. Results do not depend on the
sizes of the blocks in which audio arrives.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.frames import STRIDE, frame_count, sample_count
from sjepa.model.encoder import EncoderNetwork
from sjepa.model.moments import RunningMoments
from sjepa.model.stream_config import StreamConfig


class FeatureStream:
    """Features of live audio; `Encoder.stream` makes one.

    `push` takes the next samples (float32 at 16 kHz) and returns the frames (n, D) that they complete. `finish` returns
    the remaining frames. Together they are as many as for the whole recording.
    """

    def __init__(self, encoder: EncoderNetwork, config: StreamConfig, states: tuple[int, ...]):
        self.encoder, self.config, self.states = encoder, config, states
        self.moments = RunningMoments()
        self.waiting = np.zeros(0, np.float32)  # samples that are not processed yet
        self.recent = np.zeros(0, np.float32)  # samples from frame `convolved` on
        self.features: Tensor | None = None  # from the feature extractor, for frames before `convolved`
        self.convolved = 0
        self.done = 0  # frames that were returned
        self.samples = 0  # processed in total

    def push(self, samples: np.ndarray) -> Tensor:
        """Take the next samples, and return the frames (n, D) that they complete; often none."""
        self.waiting = np.concatenate([self.waiting, np.asarray(samples, np.float32)])
        chunk, ahead = self.config.frames(self.config.chunk), self.config.frames(self.config.look_ahead)
        out = [self.empty()]
        while (needed := sample_count(self.done + chunk + ahead) - self.samples) <= len(self.waiting):
            self.take_samples(needed)
            out.append(self.emit(chunk, self.done + chunk + ahead))
        return torch.cat(out)

    def finish(self) -> Tensor:
        """End the stream, and return the remaining frames."""
        self.take_samples(len(self.waiting))
        frames = frame_count(self.samples)
        return self.emit(frames - self.done, frames) if frames > self.done else self.empty()

    def feed(self, blocks: Iterable[np.ndarray]) -> Iterator[Tensor]:
        """Yield the frames of audio that arrives in blocks, as soon as they are complete."""
        for block in blocks:
            frames = self.push(block)
            if len(frames):
                yield frames
        yield self.finish()

    def take_samples(self, count: int) -> None:
        """Add the first waiting samples to the statistics."""
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.moments.add(taken)
        self.recent = np.concatenate([self.recent, taken])
        self.samples += len(taken)

    @torch.inference_mode()
    def emit(self, count: int, end: int) -> Tensor:
        """Compute the next frames, which see frames up to `end`."""
        new = end - self.convolved
        parts = [] if self.features is None else [self.features]
        if new:  # 0 at the end of a stream if the look-ahead already reached the last frame
            device = next(self.encoder.parameters()).device
            waveform = torch.from_numpy(self.recent[: sample_count(new)])[None].to(device)
            parts.append(self.encoder.convolve(waveform, moments=self.moments.read(device)))
            self.recent, self.convolved = self.recent[new * STRIDE :], end
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
