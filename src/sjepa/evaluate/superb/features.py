"""Features for training and testing, with prefetched audio, batched extraction, and a cache in memory and on disk."""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sjepa.audio.frames import RECEPTIVE_FIELD
from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.superb.feature_files import FeatureFiles
from sjepa.evaluate.superb.records import REMEDY, Utterance
from sjepa.evaluate.superb.sound import prepare_waveform
from sjepa.evaluate.upstream import Upstream
from sjepa.lookahead import look_ahead

Batch = tuple[Sequence[Utterance], list[Tensor]]
"""Utterances and the hidden states of each: (states, frames, dimension)."""
CPU_CACHE = 4 * 2**30  # bytes
AHEAD = 4  # prefetched batches
Reading = Future[np.ndarray | Tensor] | None
"""Pending audio or features from disk, or None if the features are in memory."""


class FeatureStore:
    """Hidden states of utterances, with up to `cache_gb` cached on the encoder's device.

    Features that do not fit go to `files`, if given. Features of random crops are never cached.
    """

    def __init__(self, upstream: Upstream, cache_gb: float | None = None, files: FeatureFiles | None = None):
        self.upstream, self.files = upstream, files
        self.room = cache_budget(upstream.device) if cache_gb is None else int(cache_gb * 2**30)
        self.cache: dict[str, Tensor] = {}
        self.places: dict[str, Path] = {}  # of features on disk, from before the audio was read
        self.pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        self.audio_seconds = self.clock = 0.0
        self.timings: deque[tuple[float, torch.cuda.Event, torch.cuda.Event]] = deque()

    def batches(self, plan: Iterable[tuple[Sequence[Utterance], int]]) -> Iterator[Batch]:
        """Yield the features of each batch of a plan: utterances, and a seed for random crops (-1 crops the middle)."""
        started = ((batch, [self.start(u, (seed, i)) for i, u in enumerate(batch)]) for batch, seed in plan)
        for utterances, reading in look_ahead(started, AHEAD):
            yield self.finish(utterances, reading)

    def start(self, utterance: Utterance, seed: tuple[int, int]) -> Reading:
        if utterance.crop:
            return self.pool.submit(self.read, utterance, seed)
        return None if utterance.key in self.cache else self.pool.submit(self.load, utterance, seed)

    def load(self, utterance: Utterance, seed: tuple[int, int]) -> np.ndarray | Tensor:
        """Return features from disk, or audio to compute them from."""
        if self.files is not None:
            file = self.places[utterance.key] = self.files.file(utterance)
            with suppress(FileNotFoundError):  # not saved yet, or deleted
                return self.files.load(file)
        return self.read(utterance, seed)

    def read(self, utterance: Utterance, seed: tuple[int, int]) -> np.ndarray:
        samples = prepare_waveform(utterance.read(), utterance.sound)
        if len(samples) < RECEPTIVE_FIELD:
            short = f"{len(samples)} samples at 16 kHz, fewer than one frame ({RECEPTIVE_FIELD})"
            raise UserError(f"{utterance.recording}: {short}; {REMEDY}")
        spare = len(samples) - utterance.crop
        if not utterance.crop or spare <= 0:
            return samples
        first = spare // 2 if seed[0] < 0 else int(np.random.default_rng(seed).integers(spare + 1))
        return samples[first : first + utterance.crop]

    def finish(self, utterances: Sequence[Utterance], reading: list[Reading]) -> Batch:
        # Skip utterances that were cached after their decoding started.
        found = {
            i: future.result()
            for i, future in enumerate(reading)
            if future is not None and (utterances[i].crop or utterances[i].key not in self.cache)
        }
        audio = {i: value for i, value in found.items() if isinstance(value, np.ndarray)}
        states = dict(zip(audio, self.extract(list(audio.values())), strict=True)) if audio else {}
        for index, value in states.items():
            if not utterances[index].crop:
                self.keep(utterances[index], value)
        device = self.upstream.device
        states |= {i: value.to(device) for i, value in found.items() if isinstance(value, Tensor)}
        return utterances, [states[i] if i in states else self.cache[u.key] for i, u in enumerate(utterances)]

    def keep(self, utterance: Utterance, states: Tensor) -> None:
        """Cache features in memory if there is room, otherwise on disk."""
        size = states.numel() * states.element_size()
        if utterance.key in self.cache:
            return
        if size <= self.room:
            self.cache[utterance.key] = states.clone()  # a copy, to free the padded batch
            self.room -= size
        elif self.files is not None:
            self.files.save(self.places[utterance.key], states)

    def extract(self, audio: list[np.ndarray]) -> list[Tensor]:
        """Return hidden states and record the time. On a GPU, events measure it without synchronising."""
        seconds = sum(map(len, audio)) / SAMPLE_RATE
        if self.upstream.device.type == "cuda":
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            states = self.upstream.extract(audio)
            ended.record()
            self.timings.append((seconds, began, ended))
            self.read_clock()
            return states
        start = time.perf_counter()
        states = self.upstream.extract(audio)
        self.clock += time.perf_counter() - start
        self.audio_seconds += seconds
        return states

    def read_clock(self) -> None:
        """Add the times of the batches that the GPU has finished."""
        while self.timings and self.timings[0][2].query():
            seconds, began, ended = self.timings.popleft()
            self.clock += began.elapsed_time(ended) / 1000
            self.audio_seconds += seconds

    @property
    def speed(self) -> float:
        """Seconds of audio per second of extraction."""
        self.read_clock()
        return self.audio_seconds / self.clock if self.clock else 0.0


def cache_budget(device: torch.device) -> int:
    """Return the default cache size in bytes."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else CPU_CACHE


def pad_states(states: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad states to a batch (B, S, T, D). Return it and the frame counts on the CPU."""
    frames = torch.tensor([state.shape[1] for state in states])
    batch = pad_sequence([state.transpose(0, 1) for state in states], batch_first=True)  # (B, T, S, D)
    return batch.transpose(1, 2), frames
