"""The arithmetic of a run: steps, epochs, days, storage, and which resource is the slowest."""

import math
from dataclasses import dataclass

GPUS_PER_NODE = 8
LINKS = {"NVLink, 450 GB/s": 450e9, "400 Gb/s per GPU": 50e9}  # bytes a second in one direction
FLAC_BYTES, INT16_BYTES = 17_000, 32_000  # a second of 16 kHz speech; flac as measured on LibriSpeech

# More epochs than this are worth a word. It is twice what our longest run used: 101 epochs of 13.2 hours, where phones
# still gained from more steps (docs/study.md). The paper's run has 7.7. HuBERT and wav2vec 2.0 repeat 960 hours several
# hundred times, so such a run is no mistake, but nothing here measures what the later epochs still bring.
MANY_EPOCHS = 200


@dataclass(frozen=True)
class Machine:
    """What a run has to run on; rates are seconds of audio a second."""

    gpus: int
    gpu_rate: float  # one GPU's whole training step
    cores: int  # of a node, for decoding
    decode_rate: float  # one core's, from FLAC
    network: float  # Gb/s of a node, for reading shards

    @property
    def nodes(self) -> int:
        return -(-self.gpus // GPUS_PER_NODE)


@dataclass(frozen=True)
class Work:
    """What a run does."""

    hours: float
    steps: int
    batch_seconds: float  # global
    gradient_bytes: int  # all-reduced in a step
    statistics_bytes: int  # of the online mixture, all-reduced in a step of phase 2

    @property
    def audio_seconds(self) -> float:
        return self.steps * self.batch_seconds

    @property
    def epochs(self) -> float:
        return self.audio_seconds / (self.hours * 3600)


def describe_repetition(audio_seconds: float, steps: int, hours: float) -> str:
    """A line about a corpus that is too small for the steps of a run; empty if it is not."""
    epochs = audio_seconds / (hours * 3600)
    if epochs <= MANY_EPOCHS:
        return ""
    enough = math.floor(steps * MANY_EPOCHS / epochs)
    return (
        f"{hours:,.3g} hours are few for {steps:,} steps: each is used {epochs:,.0f} times (the paper: 7.7, our "
        f"longest run: 101). More audio, or about {enough:,} steps ({MANY_EPOCHS} epochs), use the time better"
    )


def all_reduce_seconds(size: float, gpus: int, bandwidth: float) -> float:
    """A ring: each GPU sends and receives 2 (N - 1) / N times the size."""
    return 2 * (gpus - 1) / gpus * size / bandwidth


def all_reduce_share(work: Work, gpu_rate: float, gpu_seconds: float, gpus: int, bandwidth: float) -> float:
    """Share of a step that is spent adding up gradients, which waits for the backward pass."""
    spent = all_reduce_seconds(work.gradient_bytes + work.statistics_bytes, gpus, bandwidth)
    return spent / (spent + gpu_seconds / gpu_rate)


def waiting(work: Work, machine: Machine) -> float:
    """Share of a step that the machine's own all-reduce takes: NVLink within a node, the network beyond it."""
    bandwidth = list(LINKS.values())[machine.nodes > 1]
    return all_reduce_share(work, machine.gpu_rate, work.batch_seconds / machine.gpus, machine.gpus, bandwidth)


def rates(work: Work, machine: Machine) -> dict[str, float]:
    """Seconds of audio a second that each resource allows."""
    return {
        "GPUs": machine.gpus * machine.gpu_rate * (1 - waiting(work, machine)),
        "decoding": machine.nodes * machine.cores * machine.decode_rate,
        "network": machine.nodes * machine.network * 1e9 / 8 / FLAC_BYTES,
    }


def table(work: Work, machine: Machine, shard_hours: float) -> list[str]:
    """The plan in words and figures."""
    limits = rates(work, machine)
    slowest = min(limits, key=lambda name: limits[name])
    pace, needed = limits[slowest], limits["GPUs"] / machine.nodes
    shards = math.ceil(work.hours / shard_hours)
    flac, int16 = (storage(work.hours * 3600 * size) for size in (FLAC_BYTES, INT16_BYTES))
    where = (
        f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''}, {machine.nodes} node{'s' if machine.nodes > 1 else ''}"
    )
    lines = [
        f"{work.hours:,.0f} hours on {where}",
        f"  steps     {work.steps:,} of {work.batch_seconds:,.0f} s",
        f"  epochs    {work.epochs:.2f}: {work.audio_seconds / 3600:,.0f} hours of audio",
        f"  time      {clock(work.audio_seconds / pace)} at {pace:,.0f} s of audio a second",
        f"  storage   {flac} as flac shards, {int16} as int16",
        f"  shards    {shards:,} of {shard_hours:g} hours",
        f"  network   {needed * FLAC_BYTES * 8 / 1e9:.2f} Gb/s a node keep the GPUs busy from flac shards, "
        f"{needed * INT16_BYTES * 8 / 1e9:.2f} from int16",
        f"  cores     {needed / machine.decode_rate:.1f} a node keep them busy from flac",
        "",
        f"{'what each allows':<28}{'audio s/s':>12}",
    ]
    details = {
        "GPUs": f"{machine.gpus} × {machine.gpu_rate:,.0f}, less {waiting(work, machine):.0%} for all-reduce",
        "decoding": f"{machine.nodes * machine.cores} cores × {machine.decode_rate:,.0f}",
        "network": f"{machine.nodes} × {machine.network:g} Gb/s",
    }
    for name, rate in limits.items():
        lines.append(f"  {name:<26}{rate:>12,.0f}  {details[name]}{'  <- the bottleneck' if name == slowest else ''}")
    repeated = describe_repetition(work.audio_seconds, work.steps, work.hours)
    return [*lines, "", *scaling(work, machine), *(["", repeated] if repeated else [])]


def clock(seconds: float) -> str:
    size, unit = (86400, "days") if seconds >= 86400 else (3600, "hours") if seconds >= 3600 else (60, "minutes")
    return f"{seconds / size:,.1f} {unit}"


def storage(size: float) -> str:
    return f"{size / 1e12:.2f} TB" if size >= 1e12 else f"{size / 1e9:.1f} GB"


def scaling(work: Work, machine: Machine) -> list[str]:
    """Weak scaling: each GPU keeps its audio per step, the gradients are added up over more of them."""
    gpu_seconds = work.batch_seconds / machine.gpus
    megabytes = (work.gradient_bytes + work.statistics_bytes) / 1e6
    lines = [f"all-reduce: {megabytes:.0f} MB a step; its share of a step with {gpu_seconds:g} s of audio a GPU"]
    for gpus in (8, 64):
        shares = [
            f"{name}: {all_reduce_share(work, machine.gpu_rate, gpu_seconds, gpus, bandwidth):.1%}"
            for name, bandwidth in LINKS.items()
        ]
        lines.append(f"  {gpus:>2} GPUs   {'   '.join(shares)}")
    return lines
