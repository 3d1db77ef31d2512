"""Output of a benchmark: progress lines, tables, and a JSON file."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sjepa.files import write_whole
from sjepa.progress import say


def announce(line: str) -> None:
    """Print the current stage to stderr. A progress bar would redraw itself and disturb the measurement."""
    say(f"{line} ...", aside=True)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return the device, cores, threads and torch version of a benchmark."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else processor_name()
    return {"device": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    print(title)
    Console().print(table)


def save(results: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, json.dumps(results, indent=1) + "\n")
