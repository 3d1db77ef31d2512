"""Batches ready for a training step: decoded, cropped, masked, and on the device ahead of time."""

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.augment import AugmentConfig, Draws, draw
from sjepa.audio.io import BadAudioError
from sjepa.data.corpus import Corpus
from sjepa.data.masking import MaskConfig, block_mask
from sjepa.data.sampler import BatchPlan, BatchSpec
from sjepa.errors import UserError
from sjepa.model.frontend import frame_count


@dataclass(frozen=True)
class BatchConfig:
    """How audio becomes batches."""

    seconds: float = 2880.0
    """Audio in a global batch, all ranks together (the paper: 192 utterances of at most 15 s)."""
    max_seconds: float = 15.0
    """Longer files are cut into equal pieces of at most this."""
    buckets: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 14.0, 15.0)
    """Seconds: an utterance is cropped to the longest that fits, so a batch has one length and no padding."""
    cache: Literal["auto", "memory", "none"] = "auto"
    """Decode the whole corpus once into memory, or decode as it is needed; auto decides by `memory_gb`."""
    memory_gb: float = 8.0
    """Largest decoded corpus that auto holds in memory, per rank."""
    workers: int = 4
    """Decoding processes per rank where the corpus is not held in memory."""
    bad_share: float = 0.05
    """Share of utterances that may turn out damaged before the run stops."""


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch."""

    waveforms: Tensor  # (B, N) int16
    mask: Tensor  # (B, T) True where masked
    draws: Draws
    position: tuple[int, int]  # epoch and index of the batch after this one
    cropped: float  # seconds of audio that the crop left out
    bad: list[str]

    def to(self, device: torch.device) -> "Batch":
        if device.type == "cpu":
            return self
        moved = (tensor.pin_memory().to(device, non_blocking=True) for tensor in (self.waveforms, self.mask))
        return replace(self, waveforms=next(moved), mask=next(moved))


class BatchReader(torch.utils.data.Dataset):
    """Makes a planned batch; everything random is drawn from (seed, epoch, batch, place in the global batch)."""

    def __init__(self, corpus: Corpus, mask: MaskConfig, augment: AugmentConfig, *, seed: int, rank: int, ranks: int):
        self.corpus, self.mask, self.augment = corpus, mask, augment
        self.seed, self.rank, self.ranks = seed, rank, ranks

    def __getitem__(self, spec: BatchSpec) -> Batch:
        places = range(self.rank, len(spec.utterances), self.ranks)
        generators = [np.random.default_rng((self.seed, spec.epoch, spec.index, place)) for place in places]
        waveforms: list[np.ndarray | None] = []
        bad: list[str] = []
        available = 0
        for place, generator in zip(places, generators, strict=True):
            utterance = int(spec.utterances[place])
            length = int(self.corpus.length[utterance])
            available += length
            start = int(generator.integers(length - spec.samples + 1))
            try:
                waveforms.append(self.corpus.read(utterance, start, spec.samples))
            except BadAudioError as error:
                bad.append(str(error))
                waveforms.append(None)
        sound = [waveform for waveform in waveforms if waveform is not None]
        if not sound:
            raise UserError(f"every file of a batch is damaged: {bad[0]}")
        # A damaged utterance's place is taken by another of the batch, so that shapes stay as planned.
        stacked = np.stack([sound[i % len(sound)] if w is None else w for i, w in enumerate(waveforms)])
        frames = frame_count(spec.samples)
        mask = np.stack([block_mask(frames, self.mask, generator) for generator in generators])
        return Batch(
            torch.from_numpy(stacked),
            torch.from_numpy(mask),
            draw(generators, self.augment),
            (spec.epoch, spec.index + 1),
            (available - stacked.size) / 16_000,
            bad,
        )


def load(
    reader: BatchReader, plan: BatchPlan, position: tuple[int, int], workers: int, device: torch.device
) -> Iterator[Batch]:
    """Endless batches from a position on, prepared in the background."""
    specs = plan.batches(*position)
    if workers and reader.corpus.audio is None:
        source: Iterable[Batch] = torch.utils.data.DataLoader(
            reader,
            sampler=specs,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4,
        )
    else:
        source = (reader[spec] for spec in specs)
    return prefetched((batch.to(device) for batch in source), depth=3)


def prefetched(items: Iterable[Batch], depth: int) -> Iterator[Batch]:
    """Run an iterator ahead in a thread; its errors surface here."""
    ready: queue.Queue[Batch | BaseException] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: Batch | BaseException) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        try:
            for item in items:
                if not put(item):
                    return
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=run, daemon=True, name="batches")
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join(timeout=5)
