"""What a measurement leaves: a table on the screen, and its figures as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sjepa.files import write_whole
from sjepa.progress import say


def stage(line: str) -> None:
    """Say what is measured now. A line and no bar: one that redraws itself would take time from what is timed."""
    say(f"{line} ...", aside=True)


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures hold for."""
    named = torch.cuda.get_device_name() if device.type == "cuda" else processor()
    return {"device": named, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
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
