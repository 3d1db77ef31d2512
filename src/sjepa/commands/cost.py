"""`sjepa cost`: measure what an encoder costs to run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sjepa.bounds import INDEX, LENGTH, SIZE
from sjepa.counts import format_count
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Cost:
    """Measure parameters, multiply-accumulates and CPU latency of an encoder. `sjepa table` adds them to its scores."""

    encoder: str
    """A run, a folder or any other encoder that `sjepa superb` accepts."""
    out: Path | None = None
    """Folder for the result. Default: cost/ENCODER below RUN/results or runs, with the options that you changed."""
    seconds: Annotated[float, LENGTH] = 10.0
    """Length of the timed utterance."""
    repeats: Annotated[int, SIZE] = 5
    """Timed calls. The median is reported."""
    threads: Annotated[int, SIZE] = 1
    """CPU threads."""
    step: Annotated[int | None, INDEX] = None
    """Use the checkpoint at this step instead of the newest encoder of a run; see train.keep_every."""


def run(arguments: list[str]) -> None:
    command = parse(Cost, "sjepa cost", arguments)
    from sjepa.evaluate.cost import measure_cost
    from sjepa.evaluate.cost_files import FILE
    from sjepa.evaluate.results import results_folder
    from sjepa.evaluate.upstream import load_upstream
    from sjepa.files import write_whole
    from sjepa.locks import lock_folder

    upstream = load_upstream(command.encoder, "cpu", step=command.step)
    out = results_folder(command, "cost", upstream.name, fingerprint=upstream.fingerprint, file=FILE)
    with lock_folder(out):
        cost = measure_cost(upstream, command.seconds, command.repeats, command.threads)
        write_whole(out / FILE, json.dumps(cost, indent=1) + "\n")
    macs = cost["macs_per_second"]
    operations = "" if macs is None else f"{macs / 1e9:.2f} GMACs per second of audio, "
    timing = f"{cost['cpu_ms']:,.0f} ms for {command.seconds:g} s on {format_count(command.threads, 'CPU thread')}"
    print(f"{upstream.name}: {upstream.parameters:,} parameters, {operations}{timing}; results in {out}")
