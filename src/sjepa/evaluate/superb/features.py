"""Features of utterances for training and testing: decoded ahead, extracted in batches, kept in memory or on disk."""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.superb.feature_files import FeatureFiles
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.sound import prepare
from sjepa.evaluate.upstream import Upstream
from sjepa.model.frontend import RECEPTIVE_FIELD

Batch = tuple[Sequence[Utterance], list[Tensor]]
"""Utterances and the hidden states of each: (states, frames, dimension)."""
CPU_CACHE = 4 * 2**30  # bytes
AHEAD = 4  # batches that are being decoded while one is in use
Reading = Future[np.ndarray | Tensor] | None
"""Audio that is being decoded, or features that are being read from disk; nothing if they are in memory."""


class FeatureStore:
    """All hidden states of utterances. At most `cache_gb` is kept where they were made.

    What does not fit there goes to `files`, if they are given. Features of random crops are never kept.
    """

    def __init__(self, upstream: Upstream, cache_gb: float | None = None, files: FeatureFiles | None = None):
        self.upstream, self.files = upstream, files
        self.room = spare_memory(upstream.device) if cache_gb is None else int(cache_gb * 2**30)
        self.kept: dict[str, Tensor] = {}
        self.pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        self.audio_seconds = self.clock = 0.0
        self.timed: deque[tuple[float, torch.cuda.Event, torch.cuda.Event]] = deque()

    def batches(self, plan: Iterable[tuple[Sequence[Utterance], int]]) -> Iterator[Batch]:
        """Features of each batch of a plan: utterances, and a seed for the place of random crops (-1: the middle)."""
        waiting: deque[tuple[Sequence[Utterance], list[Reading]]] = deque()
        for utterances, seed in plan:
            waiting.append((utterances, [self.start(u, (seed, i)) for i, u in enumerate(utterances)]))
            if len(waiting) > AHEAD:
                yield self.finish(*waiting.popleft())
        while waiting:
            yield self.finish(*waiting.popleft())

    def start(self, utterance: Utterance, seed: tuple[int, int]) -> Reading:
        if utterance.crop:
            return self.pool.submit(self.read, utterance, seed)
        return None if utterance.key in self.kept else self.pool.submit(self.load, utterance, seed)

    def load(self, utterance: Utterance, seed: tuple[int, int]) -> np.ndarray | Tensor:
        """Features from disk, or audio to compute them from."""
        file: Path | None = self.files.file(utterance) if self.files is not None else None
        if self.files is not None and file is not None and file.is_file():
            return self.files.load(file)
        return self.read(utterance, seed)

    def read(self, utterance: Utterance, seed: tuple[int, int]) -> np.ndarray:
        samples = prepare(utterance.read(), utterance.sound)
        if len(samples) < RECEPTIVE_FIELD:
            raise UserError(f"{utterance.recording}: {len(samples)} samples at 16 kHz, shorter than one frame")
        spare = len(samples) - utterance.crop
        if not utterance.crop or spare <= 0:
            return samples
        first = spare // 2 if seed[0] < 0 else int(np.random.default_rng(seed).integers(spare + 1))
        return samples[first : first + utterance.crop]

    def finish(self, utterances: Sequence[Utterance], reading: list[Reading]) -> Batch:
        # What was cached since its decoding began need not be extracted again.
        found = {
            i: future.result()
            for i, future in enumerate(reading)
            if future is not None and (utterances[i].crop or utterances[i].key not in self.kept)
        }
        audio = {i: value for i, value in found.items() if isinstance(value, np.ndarray)}
        states = dict(zip(audio, self.extract(list(audio.values())), strict=True)) if audio else {}
        for index, value in states.items():
            if not utterances[index].crop:
                self.keep(utterances[index], value)
        device = self.upstream.device
        states |= {i: value.to(device) for i, value in found.items() if isinstance(value, Tensor)}
        return utterances, [states[i] if i in states else self.kept[u.key] for i, u in enumerate(utterances)]

    def keep(self, utterance: Utterance, states: Tensor) -> None:
        """In memory while there is room, then on disk."""
        size = states.numel() * states.element_size()
        if utterance.key in self.kept:
            return
        if size <= self.room:
            self.kept[utterance.key] = states.clone()  # so that the padded batch it was cut from can be freed
            self.room -= size
        elif self.files is not None:
            self.files.save(utterance, states)

    def extract(self, audio: list[np.ndarray]) -> list[Tensor]:
        """Hidden states, and the time that they took: on a GPU between two events, which nothing waits for."""
        seconds = sum(map(len, audio)) / SAMPLE_RATE
        if self.upstream.device.type == "cuda":
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            states = self.upstream.extract(audio)
            ended.record()
            self.timed.append((seconds, began, ended))
            self.read_clock()
            return states
        start = time.perf_counter()
        states = self.upstream.extract(audio)
        self.clock += time.perf_counter() - start
        self.audio_seconds += seconds
        return states

    def read_clock(self) -> None:
        """Count the batches that the GPU has finished."""
        while self.timed and self.timed[0][2].query():
            seconds, began, ended = self.timed.popleft()
            self.clock += began.elapsed_time(ended) / 1000
            self.audio_seconds += seconds

    @property
    def speed(self) -> float:
        """Audio seconds turned into features in one second of extraction."""
        self.read_clock()
        return self.audio_seconds / self.clock if self.clock else 0.0


def spare_memory(device: torch.device) -> int:
    """Bytes that features may take."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else CPU_CACHE


def padded(states: list[Tensor]) -> tuple[Tensor, Tensor]:
    """A batch (B, S, T, D) and, on the CPU, the frames of each utterance."""
    frames = torch.tensor([state.shape[1] for state in states])
    batch = pad_sequence([state.transpose(0, 1) for state in states], batch_first=True)  # (B, T, S, D)
    return batch.transpose(1, 2), frames
