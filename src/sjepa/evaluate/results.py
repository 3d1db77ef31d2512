"""Folders and files for evaluation results."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from sjepa.files import refuse_file, write_whole
from sjepa.runs.folder import find_run

# Options that are already part of the path, or do not change the result.
IGNORED_OPTIONS = ("encoder", "data", "out", "device", "alignments", "items", "step")


def results_root(source: str) -> Path:
    """Return the default folder for results of an encoder: in its run if it has one, otherwise `runs`."""
    run = find_run(Path(source.removeprefix("untrained:")))
    return run.results if run is not None else Path("runs")


def results_folder(command: Any, kind: str, encoder: str) -> Path:
    """Return `--out`, or `KIND/ENCODER` with all options that differ from their defaults, to avoid overwriting."""
    parts = [encoder.replace(" ", "-")]
    for option in fields(command):
        value = getattr(command, option.name)
        if option.name not in IGNORED_OPTIONS and value != option.default:
            parts.append(option.name.replace("_", "-") + ("" if value is True else f"-{value}"))
    folder: Path = command.out or results_root(command.encoder) / kind / "-".join(parts)
    refuse_file(folder)
    return folder


def write_results(folder: Path, results: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "results.json", json.dumps(results, indent=1) + "\n")
