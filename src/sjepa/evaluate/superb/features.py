"""Features of utterances for training and testing: decoded ahead, extracted in batches, kept in memory while small."""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.upstream import Upstream
from sjepa.model.frontend import RECEPTIVE_FIELD

Batch = tuple[Sequence[Utterance], list[Tensor]]
"""Utterances and the hidden states of each: (states, frames, dimension)."""
CPU_CACHE = 4 * 2**30  # bytes
AHEAD = 4  # batches that are being decoded while one is in use


class FeatureStore:
    """All hidden states of utterances. Nothing is written to disk; at most `cache_gb` is kept where they were made."""

    def __init__(self, upstream: Upstream, cache_gb: float | None = None):
        self.upstream = upstream
        self.room = spare_memory(upstream.device) if cache_gb is None else int(cache_gb * 2**30)
        self.kept: dict[str, Tensor] = {}
        self.pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        self.audio_seconds = self.clock = 0.0
        self.timed: deque[tuple[float, torch.cuda.Event, torch.cuda.Event]] = deque()

    def batches(self, plan: Iterable[tuple[Sequence[Utterance], int]]) -> Iterator[Batch]:
        """Features of each batch of a plan: utterances, and a seed for the place of random crops (-1: the middle)."""
        waiting: deque[tuple[Sequence[Utterance], list[Future[np.ndarray] | None]]] = deque()
        for utterances, seed in plan:
            waiting.append((utterances, [self.start(u, (seed, i)) for i, u in enumerate(utterances)]))
            if len(waiting) > AHEAD:
                yield self.finish(*waiting.popleft())
        while waiting:
            yield self.finish(*waiting.popleft())

    def start(self, utterance: Utterance, seed: tuple[int, int]) -> "Future[np.ndarray] | None":
        return None if utterance.key in self.kept else self.pool.submit(self.read, utterance, seed)

    def read(self, utterance: Utterance, seed: tuple[int, int]) -> np.ndarray:
        samples = utterance.read()
        if len(samples) < RECEPTIVE_FIELD:
            raise UserError(f"{utterance.recording}: {len(samples)} samples at 16 kHz, shorter than one frame")
        spare = len(samples) - utterance.crop
        if not utterance.crop or spare <= 0:
            return samples
        first = spare // 2 if seed[0] < 0 else int(np.random.default_rng(seed).integers(spare + 1))
        return samples[first : first + utterance.crop]

    def finish(self, utterances: Sequence[Utterance], decoding: "list[Future[np.ndarray] | None]") -> Batch:
        # What was cached since its decoding began need not be extracted again.
        new = {
            i: future.result()
            for i, future in enumerate(decoding)
            if future is not None and utterances[i].key not in self.kept
        }
        states = dict(zip(new, self.extract(list(new.values())), strict=True)) if new else {}
        for index, state in states.items():
            key, size = utterances[index].key, state.numel() * state.element_size()
            if not utterances[index].crop and size <= self.room and key not in self.kept:
                self.kept[key] = state.clone()  # so that the padded batch it was cut from can be freed
                self.room -= size
        return utterances, [states[i] if i in states else self.kept[u.key] for i, u in enumerate(utterances)]

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
