"""Prepare batches for training: decode, crop and mask them, and copy them to the device ahead of time."""

import copy
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.augment import AugmentConfig, draw, student_samples
from sjepa.audio.frames import frame_count
from sjepa.audio.io import SAMPLE_RATE, BadAudioError, SilentAudioError
from sjepa.bounds import GIGABYTES, LENGTH, NOT_NEGATIVE, POSITIVE, SHARE, WORKERS
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.masking import MaskConfig, draw_views
from sjepa.data.outages import make_outage_error
from sjepa.data.prefetch import Order, Prefetch, place_orders
from sjepa.data.sampler import BatchPlan, BatchSpec, split_evenly
from sjepa.data.storage import ByteRange, UnreachableError
from sjepa.data.workers import choose_workers, describe_end, find_ended, ignore_stop_signals, record_processes
from sjepa.device import cuda_stream
from sjepa.errors import UserError
from sjepa.stopping import stop_waiting_if_asked
from sjepa.torch_private import end_workers

WAIT = 0.2  # seconds between two looks at a request to stop while no batch is ready
READY = 3  # batches that are prepared ahead
OTHERS = 20  # substitutes to try, long enough ones and then shorter ones, if every utterance of a batch is damaged

unraised: list[BaseException] = []
"""Errors of loading in the background that nobody waits for. They refer to pinned memory, which must not be freed if
the GPU has failed: torch would abort the process. `last_pinned` is kept for the same reason."""
last_pinned: list["Batch"] = []


@dataclass(frozen=True)
class BatchConfig:
    """How audio becomes batches."""

    seconds: Annotated[float, POSITIVE] = 2880.0
    """Audio in a global batch, all ranks together (the paper: 192 utterances of at most 15 s)."""
    max_seconds: Annotated[float, LENGTH] = 15.0
    """Cut longer files of a plain folder into equal pieces of at most this length. An index is already cut."""
    buckets: Annotated[tuple[float, ...], LENGTH] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 14.0, 15.0)
    """Crop lengths in seconds. An utterance is cropped to the longest that fits, so a batch needs no padding.
    Utterances shorter than the shortest length are not used."""
    cache: Literal["auto", "memory", "none"] = "auto"
    """Decode the whole corpus into memory once (memory), or on demand (none); auto decides by `memory_gb`."""
    memory_gb: Annotated[float, NOT_NEGATIVE] = 8.0
    """Largest decoded corpus that auto holds in memory, per rank, in GiB. An hour of audio takes 0.11."""
    workers: Annotated[int | None, WORKERS] = None
    """Decoding processes per rank if the corpus is not in memory. None chooses by the machine: at most 8 on a
    GPU, and 2 on a CPU."""
    shard_cache: str = ""
    """Folder on the local disk of each machine that caches shards read from URLs; empty for no cache."""
    shard_cache_gb: Annotated[float, GIGABYTES] = 500.0
    """Largest size of this folder, for all ranks of a machine together."""
    bad_share: Annotated[float, SHARE] = 0.05
    """Share of damaged utterances above which the run stops."""

    @property
    def utterances(self) -> int:
        """Utterances in a global batch of the longest crops."""
        return max(1, int(self.seconds / max(self.buckets)))


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch."""

    waveforms: Tensor  # (B, N) int16
    masks: Tensor  # (B, V, T) True where masked, for each of V views
    draws: Tensor  # (20, B) of the augmentation
    position: tuple[int, int]  # epoch and index of the batch after this one
    available: float  # seconds of audio in the utterances of the global batch
    cropped: float  # seconds of it that the crop left out; nothing is padded
    bad: list[str]

    @property
    def seconds(self) -> float:
        return self.waveforms.numel() / SAMPLE_RATE

    @property
    def clean(self) -> Tensor:
        return to_float(self.waveforms)

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that a step needs on the device."""
        return [self.waveforms, self.masks, self.draws]

    def pin(self) -> "Batch":
        """Return a copy in memory that a GPU can read while the host goes on."""
        return self.convert(Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        return self.convert(lambda tensor: tensor.to(device, non_blocking=True))

    def convert(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        waveforms, masks, draws = map(change, self.inputs)
        return replace(self, waveforms=waveforms, masks=masks, draws=draws)


def to_float(waveforms: Tensor) -> Tensor:
    """int16 samples between -1 and 1."""
    return waveforms.float() / 32768.0


class BatchReader(torch.utils.data.Dataset):
    """Reads planned batches. Everything random is drawn from (seed, epoch, batch, place in the global batch)."""

    def __init__(
        self,
        corpus: Corpus | CorpusMix,
        mask: MaskConfig,
        augment: AugmentConfig,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
    ):
        self.corpus, self.mask, self.augment = corpus, mask, augment
        self.seed, self.rank, self.world_size, self.accumulate = seed, rank, world_size, accumulate
        self.in_memory = corpus.audio is not None
        self.reading: Tensor | None = None
        """Shared memory: process id and current utterance of each worker, to report what a crashed one was reading."""
        self.prefetch = Prefetch()

    def fetch_ahead(self, spec: BatchSpec, following: Sequence[BatchSpec]) -> None:
        """Fetch the audio of a batch from URLs, and start to fetch the batches that follow."""
        self.prefetch.keep_only({(each.epoch, each.index) for each in (spec, *following)})
        for each in (spec, *following):
            self.prefetch.start((each.epoch, each.index), self.stretches(each))

    def stretches(self, spec: BatchSpec) -> Iterator[ByteRange]:
        """The places of this rank's audio in a batch."""
        if not self.in_memory:
            yield from map(self.corpus.place, spec.utterances[spec.places(self.rank, self.world_size)].tolist())

    def __getitem__(self, spec: BatchSpec) -> Batch:
        places = spec.places(self.rank, self.world_size)
        generators = [np.random.default_rng((self.seed, spec.epoch, spec.index, place)) for place in places]
        utterances = spec.utterances[places].tolist()
        waveforms: list[np.ndarray | None] = []
        bad: list[str] = []
        with self.prefetch.hold((spec.epoch, spec.index), self.stretches(spec)):
            for utterance, generator in zip(utterances, generators, strict=True):
                try:
                    waveforms.append(self.crop(utterance, spec.samples, generator))
                except BadAudioError as error:
                    # A silent piece of a longer recording is normal; a recording that is all silence is damaged.
                    if not isinstance(error, SilentAudioError) or not self.corpus.is_piece(utterance):
                        bad.append(str(error))
                    waveforms.append(None)
        # Another utterance of the batch replaces a damaged one, so that shapes stay as planned.
        sound = [waveform for waveform in waveforms if waveform is not None] or [self.find_substitute(spec, bad)]
        stacked = np.stack([sound[i % len(sound)] if w is None else w for i, w in enumerate(waveforms)])
        frames = frame_count(student_samples(spec.samples, self.augment.speed))
        masks = np.stack([draw_views(frames, self.mask, generator) for generator in generators])
        available = int(self.corpus.length[spec.utterances].sum(dtype=np.int64))
        return Batch(
            torch.from_numpy(stacked),
            torch.from_numpy(masks),
            torch.cat([draw([generators[i] for i in part], self.augment) for part in self.parts(len(places))], dim=1),
            (spec.epoch, spec.index + 1),
            available / SAMPLE_RATE,
            (available - len(spec.utterances) * spec.samples) / SAMPLE_RATE,
            bad,
        )

    def parts(self, count: int) -> list[range]:
        """The parts of a rank's batch for gradient accumulation. Utterances are mixed within a part."""
        return split_evenly(count, self.accumulate)

    def crop(self, utterance: int, samples: int, generator: np.random.Generator) -> np.ndarray:
        """Draw a random stretch of an utterance, avoiding digital silence if it has anything else."""
        worker = torch.utils.data.get_worker_info()
        if self.reading is not None and worker is not None:
            self.reading[worker.id] = torch.tensor([os.getpid(), utterance])
        start = int(generator.integers(int(self.corpus.length[utterance]) - samples + 1))
        try:
            return self.corpus.read(utterance, start, samples)
        except SilentAudioError:
            whole = self.corpus.read(utterance)
        sound = np.flatnonzero(whole)
        middle = int(sound[generator.integers(len(sound))])
        start = min(max(0, middle - samples // 2), len(whole) - samples)
        return whole[start : start + samples]

    def find_substitute(self, spec: BatchSpec, bad: list[str]) -> np.ndarray:
        """Read a stretch from another batch, because a missing shard may have held this whole batch.

        Only if no utterance that is long enough can be read, a shorter one is repeated.
        """
        generator = np.random.default_rng((self.seed, spec.epoch, spec.index, len(spec.utterances), self.rank))
        enough = self.corpus.length >= spec.samples
        candidates = [np.flatnonzero(fitting) for fitting in (enough, ~enough)]
        chosen = [generator.permutation(numbers)[:OTHERS] for numbers in candidates]
        unreachable = False
        for utterance in np.concatenate(chosen).tolist():
            samples = min(spec.samples, int(self.corpus.length[utterance]))
            try:
                return np.resize(self.crop(utterance, samples, generator), spec.samples)
            except BadAudioError as error:
                unreachable = unreachable or isinstance(error, UnreachableError)
        if unreachable and bad:
            raise make_outage_error(bad[0])
        first = bad[0] if bad else f"{self.corpus.name(int(spec.utterances[0]))} and others are silent"
        raise UserError(f"every file of a batch is damaged, and so are {sum(map(len, chosen))} others: {first}")

    def last_read(self, dead: Sequence[BaseProcess]) -> str:
        """What these worker processes were reading."""
        rows = self.reading.tolist() if self.reading is not None else []
        numbers = [process.pid for process in dead]
        names = [self.corpus.name(utterance) for process, utterance in rows if process in numbers]
        return ", ".join(names) or "the first file"


class OrderDataset(torch.utils.data.Dataset):
    """Serves orders in a worker. Errors are returned as values, because torch would wrap them in a traceback."""

    def __init__(self, reader: BatchReader):
        self.reader = reader

    def __getitem__(self, order: Order) -> Batch | UserError:
        try:
            self.reader.fetch_ahead(*order)
            return self.reader[order.spec]
        except UserError as error:
            return error


def plan_batches(
    corpus: Corpus | CorpusMix, config: BatchConfig, seed: int, world_size: int = 1, accumulate: int = 1
) -> BatchPlan:
    """Plan the batches of a corpus. The plan does not depend on the number of ranks, which share each batch."""
    plan = BatchPlan(
        corpus.length,
        seconds=config.seconds,
        buckets=config.buckets,
        seed=seed,
        shares=corpus.shares,
        block=corpus.block,
    )
    plan.require_parts(world_size, accumulate)
    return plan


def load(
    reader: BatchReader,
    plan: BatchPlan,
    position: tuple[int, int],
    workers: int | None,
    device: torch.device,
) -> Generator[Batch, None, None]:
    """Yield batches without end from a position on, prepared in the background. Close the generator to stop.

    A single process that is asked to stop while the next batch is not ready raises StoppedError.
    """
    ended = torch.zeros(1, dtype=torch.bool).share_memory_()
    reader = copy.copy(reader)  # with its own requests, because frames for fitting targets are read at the same time
    reader.prefetch = Prefetch(ended, reports=reader.rank == 0)
    specs, processes = plan.batches(*position), choose_workers(workers, device.type)
    if processes and not reader.in_memory:
        source = load_from_workers(reader, specs, processes)
    else:
        source = load_in_process(reader, specs)
    ready = run_ahead(source) if device.type == "cpu" else copy_to_device(source, device)
    try:
        while True:
            yield next(ready)
    finally:
        ended.fill_(True)  # first, so that requests stop waiting for a server
        ready.close()


def load_in_process(reader: BatchReader, specs: Iterator[BatchSpec]) -> Generator[Batch, None, None]:
    for order in place_orders(specs, 1):
        reader.fetch_ahead(*order)
        yield reader[order.spec]


def copy_to_device(batches: Generator[Batch, None, None], device: torch.device) -> Generator[Batch, None, None]:
    """Copy batches to a GPU ahead of time, on a separate CUDA stream."""
    stream = cuda_stream("copies", device)

    def copy_batches() -> Generator[Batch, None, None]:
        with closing(batches):
            for batch in batches:
                with torch.cuda.stream(stream):
                    pinned = batch.pin()
                    moved = pinned.to(device)
                stream.synchronize()  # the thread that prefetches waits, not the step
                last_pinned[:] = [pinned]
                yield moved

    with closing(run_ahead(copy_batches())) as ready:
        for batch in ready:
            for tensor in batch.inputs:
                tensor.record_stream(torch.cuda.current_stream(device))
            yield batch


def load_from_workers(reader: BatchReader, specs: Iterator[BatchSpec], workers: int) -> Generator[Batch, None, None]:
    """Yield batches from worker processes. If a worker crashes, report what it was reading."""
    reader.reading = torch.zeros(workers, 2, dtype=torch.int64).share_memory_()
    context, processes = record_processes()
    batches = iter(
        torch.utils.data.DataLoader(
            OrderDataset(reader),
            sampler=place_orders(specs, workers),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4,
            multiprocessing_context=context,
            worker_init_fn=ignore_stop_signals,
        )
    )
    try:
        for batch in batches:
            if isinstance(batch, UserError):
                raise batch
            yield batch
    except (RuntimeError, EOFError, OSError):
        # RuntimeError: torch found a dead worker. The others: a worker died while it sent a batch.
        ended = find_ended(processes)
        if not ended:
            raise
        raise worker_error(reader, ended) from None
    finally:
        end_workers(batches)
        for process in processes:
            if process.is_alive():
                process.kill()  # workers ignore the SIGTERM of the loader


def worker_error(reader: BatchReader, ended: Sequence[BaseProcess]) -> UserError:
    """The error for crashed workers: which ones, and how they ended."""
    ends = ", ".join(sorted({describe_end(process) for process in ended}))
    return UserError(
        f"a process that reads audio ended with {ends} while it read {reader.last_read(ended)}. If that file is the "
        "cause, remove it. If memory ran out, lower batches.workers. Then the same command continues"
    )


def run_ahead(items: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
    """Run an iterator ahead in a thread. Its errors are raised here."""
    ready: queue.Queue[Batch | BaseException] = queue.Queue(READY)
    stopped = threading.Event()

    def put(item: Batch | BaseException) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return not stopped.is_set()
            except queue.Full:
                continue
        return False

    def run() -> None:
        try:
            for item in items:
                if not put(item):
                    return
        except BaseException as error:
            if not put(error):
                unraised.append(error)
        finally:
            items.close()

    thread = threading.Thread(target=run, daemon=True, name="batches")
    thread.start()
    try:
        while True:
            try:
                item = ready.get(timeout=WAIT)
            except queue.Empty:
                stop_waiting_if_asked()
                continue
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        with suppress(queue.Empty):
            while True:  # a thread that waits for room ends at once
                if isinstance(item := ready.get_nowait(), BaseException):
                    unraised.append(item)
        thread.join(timeout=5)
