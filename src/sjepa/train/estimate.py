"""Estimate a run: steps, repetitions of the audio, days, storage, and the slowest resource."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sjepa.durations import format_duration

LARGEST_ON_CPU = 256  # width of the largest encoder that a CPU trains in reasonable time; `tiny` has 128
GPUS_PER_NODE = 8
NVLINK = 315e9  # bytes per second in one direction within a node: rings reach 70% of 450 GB/s
CARD_SHARE = 0.9  # share of a network card's rate that rings reach
COLLECTIVE = 50e-6  # seconds before a collective's first byte; a step has two
EARLY = 0.93  # share of the gradients that are reduced during the backward pass of the front end
OVERLAP = 0.26  # share of a step's computation that this pass takes: 9 of 34 ms
VIEW = 0.4  # share of a step's time that another mask per utterance adds
HOST_COPY = 10e9  # bytes per second from a GPU to host memory
HELPS = 1.4  # more GPUs help if twice as many are at least this many times as fast
FLAC_BYTES, INT16_BYTES = 17_000, 32_000  # per second of 16 kHz speech; flac measured on LibriSpeech

# Mention the repetition above this number. It is about twice the most of our runs: 101 times 13.2 hours, which still
# improved with more steps (docs/study-adamw.md), and 100 times 7.2 hours of Iban (docs/study-iban.md). The paper
# repeats its audio 7.7 times. HuBERT and wav2vec 2.0 repeat 960 hours several hundred times, so such a run is not a
# mistake, but we have not measured what it gains.
MANY_REPETITIONS = 200


@dataclass(frozen=True)
class StepTime:
    """Seconds of audio per GPU and step, and the rate with one mask per utterance in seconds of audio per second."""

    audio: float
    rate: float  # if targets come from the audio itself
    encoder_rate: float  # if they come from a target encoder


H200 = (
    # benchmarks/results/step-3-h200.json, step-6-h200.json, step-12-h200.json and step-plain-h200.json: N x 15 s
    StepTime(45.0, 6467.0, 5471.0),
    StepTime(90.0, 8371.0, 7042.0),
    StepTime(180.0, 9460.0, 7921.0),
    StepTime(360.0, 10315.0, 8632.0),
    # benchmarks/results/step-192-h200.json: 192 x 15 s, measured with a target encoder only
    StepTime(2880.0, 10315.0, 9318.0),
)


def view_cost(views: int) -> float:
    """Time of a step with several masks per utterance, relative to a step with one."""
    return 1 + VIEW * (views - 1)


def compute_seconds(times: Sequence[StepTime], audio: float, reads_encoder: bool) -> float:
    """Time of a step with `audio` seconds on one GPU, interpolated between measurements.

    Above the largest measured step the rate is constant. Below the smallest the line continues, because a step has a
    fixed cost.
    """
    known = sorted((time.audio, time.audio / (time.encoder_rate if reads_encoder else time.rate)) for time in times)
    largest, seconds = known[-1]
    if audio >= largest or len(known) == 1:
        return seconds * audio / largest
    (a, t), (b, u) = next(pair for pair in pairwise(known) if audio < pair[1][0])
    return max(t + (audio - a) * (u - t) / (b - a), 0.0)


@dataclass(frozen=True)
class Machine:
    """The hardware of a run; rates are in seconds of audio per second."""

    gpus: int
    times: Sequence[StepTime]
    cores: int  # of a node, for decoding
    decode_rate: float  # one core's, from FLAC
    network: float  # Gb/s of a node, for reading shards
    cards: int = 1  # network cards of a node, for gradients
    card_rate: float = 400.0  # Gb/s of one
    disk: float = 0.5  # GB/s at which a checkpoint is written
    source: str = ""  # where the rates come from, if the user did not give them

    @property
    def nodes(self) -> int:
        return -(-self.gpus // GPUS_PER_NODE)


@dataclass(frozen=True)
class PhaseWork:
    """The work of one phase."""

    steps: int
    batch_seconds: float  # global
    reads_encoder: bool  # its targets come from a target encoder
    views: int = 1  # masks per utterance


@dataclass(frozen=True)
class Work:
    """The work of a run."""

    hours: float
    phases: tuple[PhaseWork, ...]
    gradient_bytes: int  # all-reduced in every step
    statistics_bytes: int  # of an online mixture, all-reduced in its steps
    checkpoint_bytes: int
    checkpoint_every: int  # steps
    utterances_per_batch: int

    def audio_per_gpu(self, phase: "PhaseWork", gpus: int) -> float:
        """Seconds of audio per step of the GPU with the most utterances, for which the others wait."""
        return phase.batch_seconds * math.ceil(self.utterances_per_batch / gpus) / self.utterances_per_batch

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def audio_seconds(self) -> float:
        return sum(phase.steps * phase.batch_seconds for phase in self.phases)

    @property
    def repetitions(self) -> float:
        return self.audio_seconds / (self.hours * 3600)


def describe_repetition(audio_seconds: float, steps: int, hours: float) -> str:
    """A line about a corpus that is small for the steps of a run; empty if it is large enough."""
    repetitions = audio_seconds / (hours * 3600)
    if repetitions <= MANY_REPETITIONS:
        return ""
    amount = f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
    enough = math.floor(steps * MANY_REPETITIONS / repetitions)
    return (
        f"{amount} hours of audio is not much for {steps:,} steps: the run uses them up to {repetitions:,.0f} times "
        f"(the paper: 7.7, our runs: up to 101). Add audio, or train for about {enough:,} steps, which use them "
        f"{MANY_REPETITIONS} times"
    )


def all_reduce_seconds(size: float, machine: Machine) -> float:
    """Time of ring all-reduces within nodes, then between them. Each of N members sends 2 (N - 1) / N times the size.

    The GPUs of a node share its network cards.
    """
    if machine.gpus == 1:
        return 0.0
    inside, nodes = min(machine.gpus, GPUS_PER_NODE), machine.nodes
    cards = machine.cards * machine.card_rate * 1e9 / 8 * CARD_SHARE
    return COLLECTIVE + 2 * (inside - 1) / inside * size / NVLINK + 2 * (nodes - 1) / nodes * size / cards


@dataclass(frozen=True)
class StepCost:
    """Seconds of one step."""

    compute: float
    gradients: float  # communication that does not overlap with computation
    checkpoint: float  # cost of checkpoints per step

    @property
    def total(self) -> float:
        return self.compute + self.gradients + self.checkpoint


def step_cost(work: Work, phase: PhaseWork, machine: Machine) -> StepCost:
    compute = compute_seconds(machine.times, work.audio_per_gpu(phase, machine.gpus), phase.reads_encoder)
    compute *= view_cost(phase.views)
    early = all_reduce_seconds(EARLY * work.gradient_bytes, machine)
    statistics = work.statistics_bytes if phase.reads_encoder else 0
    late = all_reduce_seconds((1 - EARLY) * work.gradient_bytes + statistics, machine)
    gradients = max(0.0, early - OVERLAP * compute) + late
    # Training waits for the copy to host memory, and for a write that is unfinished when the next checkpoint is due.
    unfinished = work.checkpoint_bytes / (machine.disk * 1e9) - work.checkpoint_every * (compute + gradients)
    checkpoint = (work.checkpoint_bytes / HOST_COPY + max(0.0, unfinished)) / work.checkpoint_every
    return StepCost(compute, gradients, checkpoint)


def gpu_seconds(work: Work, machine: Machine) -> float:
    """Time of a run if the GPUs never wait for data."""
    return sum(phase.steps * step_cost(work, phase, machine).total for phase in work.phases)


def rates(work: Work, machine: Machine) -> dict[str, float]:
    """Seconds of audio per second that each resource allows."""
    return {
        "GPUs": work.audio_seconds / gpu_seconds(work, machine),
        "decoding": machine.nodes * machine.cores * machine.decode_rate,
        "network": machine.nodes * machine.network * 1e9 / 8 / FLAC_BYTES,
    }


def useful_gpus(work: Work, machine: Machine) -> tuple[int, float]:
    """The number of GPUs above which doubling does not help, and the speedup of doubling it."""
    gpus = 1
    while True:
        here, there = (gpu_seconds(work, replace(machine, gpus=count)) for count in (gpus, 2 * gpus))
        if here / there < HELPS or 2 * gpus > work.utterances_per_batch:
            return gpus, here / there if 2 * gpus <= work.utterances_per_batch else 0.0
        gpus *= 2


def describe_plan(work: Work, machine: Machine, shard_hours: float) -> list[str]:
    """The lines of the plan, section by section."""
    sections = [summarise(work, machine, shard_hours), describe_limits(work, machine), describe_scaling(work, machine)]
    if repetition := describe_repetition(work.audio_seconds, work.steps, work.hours):
        sections.append([repetition])
    return [line for section in sections for line in (*section, "")][:-1]


def summarise(work: Work, machine: Machine, shard_hours: float) -> list[str]:
    needed = rates(work, machine)["GPUs"] / machine.nodes
    pace = min(rates(work, machine).values())
    shards = math.ceil(work.hours / shard_hours)
    flac, int16 = (format_bytes(work.hours * 3600 * size) for size in (FLAC_BYTES, INT16_BYTES))
    where = (
        f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''}, {machine.nodes} node{'s' if machine.nodes > 1 else ''}"
    )
    batches = " and ".join(f"{size:,.0f}" for size in dict.fromkeys(phase.batch_seconds for phase in work.phases))
    return [
        f"{work.hours:,.0f} hour{'' if round(work.hours) == 1 else 's'} on {where}",
        f"  steps     {work.steps:,}, each with up to {batches} s of audio",
        f"  audio     up to {work.audio_seconds / 3600:,.0f} hours: the corpus {format_times(work.repetitions)}",
        f"  time      {format_duration(work.audio_seconds / pace)} at {pace:,.0f} s of audio per second",
        *([f"  rates     {machine.source}"] if machine.source else []),
        f"  storage   {flac} as flac shards, {int16} as int16",
        f"  shards    {shards:,} of {shard_hours:g} hours",
        f"  network   {needed * FLAC_BYTES * 8 / 1e9:.2f} Gb/s per node keep the GPUs busy from flac shards, "
        f"{needed * INT16_BYTES * 8 / 1e9:.2f} from int16",
        f"  cores     {needed / machine.decode_rate:.1f} per node keep them busy from flac",
        f"  saving    {format_bytes(work.checkpoint_bytes)} every {work.checkpoint_every:,} steps: training waits "
        f"{work.checkpoint_bytes / HOST_COPY:.2f} s for the copy, then it is written in the background",
    ]


def describe_limits(work: Work, machine: Machine) -> list[str]:
    """The rate that each resource allows, and the slowest one."""
    allowed = rates(work, machine)
    slowest = min(allowed, key=lambda name: allowed[name])
    costs = [(phase.steps, step_cost(work, phase, machine)) for phase in work.phases]
    computing = sum(steps * cost.compute for steps, cost in costs)
    lost = 1 - computing / sum(steps * cost.total for steps, cost in costs)
    per_gpu = work.audio_seconds / computing / machine.gpus
    details = {
        "GPUs": f"{machine.gpus} × {per_gpu:,.0f}, less {lost:.1%} for gradients and checkpoints",
        "decoding": f"{machine.nodes * machine.cores} cores × {machine.decode_rate:,.0f}",
        "network": f"{machine.nodes} × {machine.network:g} Gb/s",
    }
    return [
        f"{'what each allows':<28}{'audio s/s':>12}",
        *(
            f"  {name:<26}{rate:>12,.0f}  {details[name]}{'  <- the bottleneck' if name == slowest else ''}"
            for name, rate in allowed.items()
        ),
    ]


def describe_scaling(work: Work, machine: Machine) -> list[str]:
    """Times with other numbers of GPUs, without waiting for data, and the number above which more hardly help."""
    megabytes = work.gradient_bytes / 1e6
    plural = "s" if machine.cards > 1 else ""
    lines = [
        f"the GPUs alone, on other numbers of them: {megabytes:.0f} MB of gradients per step, "
        f"{machine.cards} network card{plural} of {machine.card_rate:g} Gb/s per node",
        f"{'GPUs':>6}{'audio per GPU':>15}{'ms, phase 1 / 2':>17}{'gradients':>11}{'audio s/s':>12}"
        f"{'per GPU':>9}{'time':>14}",
    ]
    alone = rates(work, replace(machine, gpus=1))["GPUs"]
    counts = {2**power for power in range(12)} | {machine.gpus}
    shown = sorted(count for count in counts if count <= min(work.utterances_per_batch, max(128, machine.gpus)))
    for gpus in shown:
        here = replace(machine, gpus=gpus)
        costs = [step_cost(work, phase, here) for phase in work.phases]
        steps = " / ".join(f"{1e3 * cost.total:.1f}" for cost in costs[:2])
        waiting = max(cost.gradients / cost.total for cost in costs)
        pace = rates(work, here)["GPUs"]
        audio = f"{work.audio_per_gpu(work.phases[0], gpus):,.1f} s"
        lines.append(
            f"{gpus:>6}{audio:>15}{steps:>17}{waiting:>11.1%}{pace:>12,.0f}{pace / gpus / alone:>9.0%}"
            f"{format_duration(work.audio_seconds / pace):>14}"
        )
    smallest = min(time.audio for time in machine.times)
    if len(machine.times) > 1 and any(work.audio_per_gpu(phase, max(shown)) < smallest for phase in work.phases):
        lines.append(f"Times of less than {smallest:g} s of audio per GPU are estimated from larger steps.")
    gpus, gain = useful_gpus(work, machine)
    if gain:
        lines.append(f"{2 * gpus} GPUs would be only {gain:.2f} times as fast as {gpus}, so more GPUs hardly help.")
    else:
        most = work.utterances_per_batch
        lines.append(f"A batch has {most} utterances, so at most {most} GPUs can share it.")
    return lines


def format_times(count: float) -> str:
    return f"{count:,.0f} times" if count >= 10 else f"{count:.2f} times"


def format_bytes(size: float) -> str:
    if size < 1e8:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e12:.2f} TB" if size >= 1e12 else f"{size / 1e9:.1f} GB"
