"""How benchmarks write their results: tables in Markdown, and JSON with one line per entry."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sjepa.files import read_json, write_whole


def to_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Empty cells become dashes."""
    lines = ["|" + "".join(f" {column} |" if column else " |" for column in columns), "|" + " --- |" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(cell or '–' for cell in row)} |" for row in rows)])


def write_entries(path: Path, entries: Mapping[str, Any]) -> None:
    """Write a JSON object with one line per entry, so that changes are easy to see."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
    write_whole(path, f"{{{lines}}}\n")


def merge_entries(path: Path, entries: Mapping[str, Any]) -> None:
    """Write entries into a JSON object, and keep its others."""
    kept = read_json(path) if path.is_file() else {}
    write_entries(path, kept | entries)
