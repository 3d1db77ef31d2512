"""Files of evaluation results: where they go, how they are written, read and checked."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from sjepa.errors import UserError
from sjepa.evaluate.metric import Better, SectionKind
from sjepa.fields import NUMBER, TABLE, TEXT, WHOLE, Kind, check_fields, list_of, one_of, optional, require, table_of
from sjepa.files import read_json, refuse_file, write_whole
from sjepa.model.encoder_folder import EncoderFolder
from sjepa.model.named import UNTRAINED
from sjepa.runs.folder import RunFolder
from sjepa.runs.locate import find_run

RESULTS = "results.json"
EARLIER = " (earlier)"  # after the name of an encoder that its run has trained further since
OUTSIDE_RUNS = Path("runs")  # results of encoders that do not belong to a run
# Options that are already part of the path, or do not change the result.
IGNORED_OPTIONS = ("encoder", "data", "out", "device", "items", "step", "repeats")
CODEBOOK = "codebook"  # the option with the audio of a k-means codebook
# Fields of `results.json`: those that each command must write, and the values that each may have.
REQUIRED = {"probe": {"layers", "corpus"}, "units": {"units", "metrics", "corpus"}}
REQUIRED_OF_TASKS = {"protocol", "metrics", "decoded"}
COUNTS = ("utterances", "of_utterances", "phone_utterances")
FIELDS = {
    "task": TEXT,
    "corpus": TEXT,
    "encoder": TABLE,
    "protocol": TABLE,
    "units": TABLE,
    "layers": table_of(table_of(TABLE)),
    "metrics": table_of(NUMBER),
    "decoded": table_of(table_of(NUMBER)),
    "better": table_of(one_of(*(better.value for better in Better))),
    "section": one_of(*(kind.value for kind in SectionKind)),
    "data": Kind("an object or a list of objects", lambda value: TABLE.accepts(value) or list_of(TABLE).accepts(value)),
    "dev": TABLE,
    "labels": optional(TEXT),
    "learning_rate": optional(NUMBER),
    "seed": optional(WHOLE),
    "requested_frames": optional(WHOLE),
}
ENCODER_FIELDS = {"name": TEXT, "parameters": WHOLE, "fingerprint": TEXT, "states": optional(WHOLE)}


def results_root(source: str) -> Path:
    """Return the default folder for results of an encoder: in its run if it has one, otherwise `runs`."""
    run = find_run(Path(source.removeprefix(UNTRAINED)))
    return run.results if run is not None else OUTSIDE_RUNS


def results_folder(
    command: Any,
    kind: str,
    encoder: str,
    corpus: str = "",
    fingerprint: str = "",
    labels: str = "",
    file: str = RESULTS,
) -> Path:
    """Return `--out`, or `KIND/ENCODER` with the corpus and all options that differ from their defaults.

    So results of other data or options are not overwritten. `labels` identifies a corpus among those with the same
    name. `file` is the name of the results. Raise UserError if the folder has results of another encoder with the same
    name; only in a run, new weights replace old ones.
    """
    parts = [part.replace(" ", "-") for part in (encoder, corpus) if part]
    for option in fields(command):
        value = getattr(command, option.name)
        if option.name not in IGNORED_OPTIONS and value != option.default:
            shown = value.name if isinstance(value, Path) else value  # a path would make nested folders
            if option.name == CODEBOOK:
                shown = f"{shown}-{hash_path(value)}"
            parts.append(option.name.replace("_", "-") + ("" if value is True else f"-{shown}"))
    root = results_root(command.encoder)
    folder: Path = command.out or separate_labels(root / kind / "-".join(parts), labels)
    refuse_file(folder)
    if fingerprint and command.out is None and root == OUTSIDE_RUNS and (folder / file).is_file():
        known = require(read_json(folder / file), "encoder", TABLE, str(folder / file))
        if known.get("fingerprint") != fingerprint:
            raise UserError(f"{folder} has results of another encoder named {encoder}: choose a folder with --out")
    return folder


def hash_path(path: Path) -> str:
    """Return a short hash that tells folders with the same name apart."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:7]


def separate_labels(folder: Path, labels: str) -> Path:
    """Return the folder, or another one next to it if the folder has results of other labels."""
    if not labels or not (folder / RESULTS).is_file():
        return folder
    other = any(found.get("labels") not in (None, labels) for found in find_results([folder / RESULTS]))
    return folder.with_name(f"{folder.name}-labels-{labels[:7]}") if other else folder


def write_results(folder: Path, results: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RESULTS, json.dumps(results, indent=1) + "\n")


def find_results(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read all `results.json` files that are given or lie below the given folders."""
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no folder {path}")
        files.update(dict.fromkeys([path] if path.is_file() else sorted(path.rglob(RESULTS))))
    found = []
    for file in files:
        results = read_json(file)
        if is_result(results):
            check_results(results, str(file))
            mark_earlier(results["encoder"], file)
            found.append(results)
    return found


def mark_earlier(encoder: dict[str, Any], file: Path) -> None:
    """Mark the name of a run's encoder in a file of results if the run has been trained further since."""
    run = next((run for run in map(RunFolder, file.parents) if run.exists), None)
    if run is None or encoder["name"] != run.name:
        return
    weights = EncoderFolder(run.encoder).recorded_fingerprint()
    if weights not in ("", encoder["fingerprint"]):
        encoder["name"] += EARLIER


def is_result(results: Any) -> bool:
    """Return whether a `results.json` is ours. Other programs write files of this name too."""
    if not isinstance(results, dict) or not {"task", "encoder"} <= results.keys():
        return False
    known = isinstance(results["encoder"], dict) and {"name", "parameters", "fingerprint"} <= results["encoder"].keys()
    return known and REQUIRED.get(str(results["task"]), REQUIRED_OF_TASKS) <= results.keys()


def check_results(results: dict[str, Any], file: str) -> None:
    """Raise UserError if a field has an invalid value."""
    check_fields(results, FIELDS, file)
    check_fields(results["encoder"], ENCODER_FIELDS, f"{file}: encoder")
    if results["task"] == "probe":
        if not results["layers"]:
            raise UserError(f"{file}: layers is empty")
        for layer in results["layers"].values():
            for score in layer.values():
                for name in ("mean", "deviation"):
                    require(score, name, NUMBER, f"{file}: layers")
    elif results["task"] == "units":
        require(results["units"], "kind", TEXT, f"{file}: units")
        require(results["units"], "clusters", optional(WHOLE), f"{file}: units")
    else:
        require(results["protocol"], "name", TEXT, f"{file}: protocol")
        check_fields(results["protocol"], {"steps": WHOLE, "lr": optional(NUMBER)}, f"{file}: protocol")
        if results["protocol"]["name"] == "lite":
            require(results["protocol"], "steps", WHOLE, f"{file}: protocol")
    data = results.get("data")
    for part in data if isinstance(data, list) else ():
        require(part, "train_hours", NUMBER, f"{file}: data")
    if isinstance(data, dict):
        check_fields(data, dict.fromkeys(COUNTS, optional(WHOLE)), f"{file}: data")
    if isinstance(results.get("dev"), dict):
        check_fields(results["dev"], {"by_learning_rate": TABLE}, f"{file}: dev")


def flatten_settings(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested settings to one level, with names joined by spaces."""
    if isinstance(value, dict):
        return {
            key: v
            for k, part in value.items()
            for key, v in flatten_settings(part, k if not name else f"{name} {k}").items()
        }
    if isinstance(value, list):
        return {key: v for i, part in enumerate(value) for key, v in flatten_settings(part, f"{name} {i}").items()}
    return {name.replace("_", " "): value}
