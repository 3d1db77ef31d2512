"""Many encoders and tasks side by side, from the `results.json` files below some folders."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sjepa.errors import UserError
from sjepa.evaluate import reported
from sjepa.files import read_json

FULL, OTHER, LITE = "SUPERB", "Full protocol, not part of SUPERB", "Lite protocols"
DEV_CLEAN, DEV_CLEAN_UTTERANCES = "LibriSpeech dev-clean", 2703
PROBES = f"Probes on {DEV_CLEAN}"
NOT_SUPERB = ("ravdess", "coffee")
LOWER = ("wer", "cer", "per", "abx_within", "abx_across")
NEITHER = ("perplexity", "units_used")  # more is not better
# Encoders are compared with those of their size, as in the paper.
CLASSES = (90.0, 200.0, math.inf)  # millions of parameters
MARK = "† reported by others, not measured here"
# What a result has beside its outcome: results that differ in any of it are not seeds of one measurement.
SETTINGS = ("protocol", "learning_rate", "data", "units")
NEEDED = {"probe": {"layers", "corpus"}, "units": {"units", "metrics", "corpus"}}
NEEDED_OF_TASKS = {"protocol", "metrics", "decoded"}


@dataclass
class Row:
    name: str
    millions: float | None
    reported: bool
    scores: dict[str, list[float]] = field(default_factory=dict)
    """One value of each seed."""
    deviations: dict[str, float] = field(default_factory=dict)
    """Over the splits of a single seed."""

    def value(self, column: str) -> float | None:
        """Over several seeds, the mean."""
        return float(np.mean(self.scores[column])) if column in self.scores else None

    def seeds(self, column: str) -> int:
        return len(self.scores.get(column, ()))

    def deviation(self, column: str) -> float | None:
        """Over seeds where there are several, else over splits."""
        return float(np.std(self.scores[column])) if self.seeds(column) > 1 else self.deviations.get(column)

    @property
    def sized(self) -> float:
        """Millions of parameters; a reported network that does not say is of base size."""
        return 95.0 if self.millions is None else self.millions

    @property
    def group(self) -> int:
        return next(index for index, most in enumerate(CLASSES) if self.sized < most)


@dataclass
class Section:
    title: str
    rows: list[Row]
    rates: list[str] = field(default_factory=list)
    """Learning rates that are not the protocol's."""

    @property
    def columns(self) -> list[str]:
        """In order of appearance, measured ones first."""
        ordered = sorted(self.rows, key=lambda row: row.reported)
        return list(dict.fromkeys(column for row in ordered for column in row.scores))

    @property
    def note(self) -> str:
        """What must be said with the table."""
        chosen = f" Learning rates other than the protocol's: {', '.join(self.rates)}." if self.rates else ""
        return note(self.title) + chosen + " Best of its size class in bold."

    def best(self, column: str, group: int) -> float | None:
        """The best value of a column among encoders of a class; none where a single one has a value."""
        values = [v for row in self.rows if row.group == group and (v := row.value(column)) is not None]
        if len(values) < 2 or column.endswith(NEITHER):
            return None
        return min(values) if lower_is_better(column) else max(values)

    def is_best(self, row: Row, column: str) -> bool:
        value, best = row.value(column), self.best(column, row.group)
        return best is not None and value is not None and math.isclose(value, best, abs_tol=5e-5)


def lower_is_better(column: str) -> bool:
    return column.endswith(LOWER)


def find_results(places: Iterable[Path]) -> list[dict[str, Any]]:
    """All `results.json` that are given or lie below the folders given."""
    files: dict[Path, None] = {}
    for place in places:
        if not place.exists():
            raise UserError(f"there is no folder {place}")
        files.update(dict.fromkeys([place] if place.is_file() else sorted(place.rglob("results.json"))))
    found = []
    for file in files:
        results = read_json(file)
        found += [results] if is_ours(results) else []
    return found


def is_ours(results: Any) -> bool:
    """Others write files of this name too."""
    if not isinstance(results, dict) or not {"task", "encoder"} <= results.keys():
        return False
    known = isinstance(results["encoder"], dict) and {"name", "parameters", "fingerprint"} <= results["encoder"].keys()
    return known and NEEDED.get(results["task"], NEEDED_OF_TASKS) <= results.keys()


def section_of(results: dict[str, Any]) -> str:
    """A table holds what was measured on the same data by the same protocol."""
    if results["task"] in ("probe", "units"):
        data = results.get("data", {})
        used = data.get("phone_utterances" if results["task"] == "probe" else "utterances")
        total = data.get("utterances" if results["task"] == "probe" else "of_utterances")
        title = f"{results['task'].capitalize().rstrip('s')}s on {results['corpus']}"
        if results["corpus"] == DEV_CLEAN and total is not None and total < DEV_CLEAN_UTTERANCES:
            title += f", only {total:,} utterances of it"
        return title + (f", phones of {used:,} of {total:,} utterances" if used and total and used < total else "")
    if results["protocol"]["name"] == "lite":
        return LITE
    return OTHER if results["task"] in NOT_SUPERB else FULL


def reported_beside(title: str) -> Sequence[reported.Reported]:
    """What others reported on the same data; the phones of a part of dev-clean are compared with those of all."""
    if title.startswith(PROBES) and "only" not in title:
        return reported.PROBES
    return reported.SUPERB if title == FULL else ()


def note(title: str) -> str:
    if title == LITE:
        return "Reduced protocols: fewer steps, less data, a narrower recurrent head. Not comparable with full results."
    if title.startswith(PROBES) and "only" not in title:
        return f"Accuracy in percent, mean ± deviation over splits. {MARK}, with 67 phonemes of another alignment."
    if title.startswith("Probes"):
        return "Accuracy in percent, mean ± deviation over splits."
    if title.startswith("Units"):
        return "Agreement of discrete units with phones; ABX error in percent."
    return f"Percent, ↓ lower is better. {MARK}." if title == FULL else "Percent."


def scores_of(results: dict[str, Any], labels: str = "") -> list[tuple[str, float, float | None]]:
    """Columns, values and deviations of one `results.json`; `labels` tells a task's from others in the same table."""
    if results["task"] == "probe":
        scores = results["layers"][probed_layer(results)]
        return [(name, score["mean"], score["deviation"]) for name, score in scores.items()]
    if results["task"] == "units":
        kind = results["units"]["kind"] + (f" {results['units']['clusters']}" if results["units"]["clusters"] else "")
        return [(f"{kind} {name}", value, None) for name, value in results["metrics"].items()]
    title = results["task"]
    if results["protocol"]["name"] == "lite":
        hours = [fold["train_hours"] for fold in results.get("data", ())]
        title += f"-lite, {results['protocol']['steps']:,} steps,"
        title += f" {np.mean(hours):.2g} h," if hours else ""
    title += f" labels {labels}," if labels else ""
    greedy = [(f"{title} {name}", value, None) for name, value in results["metrics"].items()]
    return greedy + [
        (f"{title}+lm ({decoder}) {name}", value, None)
        for decoder, metrics in results["decoded"].items()
        for name, value in metrics.items()
    ]


def probed_layer(results: dict[str, Any]) -> str:
    """The deepest layer that was probed."""
    return list(results["layers"])[-1]


def measured_on(results: dict[str, Any]) -> str:
    """The encoder, and where probes read it unless that is its last layer."""
    name, states = results["encoder"]["name"], results["encoder"].get("states")
    if results["task"] != "probe" or states is None:
        return str(name)
    last = "features" if states == 1 else f"layer {states - 2}"
    return str(name) if probed_layer(results) == last else f"{name}, {probed_layer(results)}"


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested settings as one level, each under its innermost names."""
    if isinstance(value, dict):
        return {key: v for k, part in value.items() for key, v in flat(part, k if not name else f"{name} {k}").items()}
    if isinstance(value, list):
        return {key: v for i, part in enumerate(value) for key, v in flat(part, f"{name} {i}").items()}
    return {name.replace("_", " "): value}


def told_apart(results: Sequence[dict[str, Any]]) -> list[str]:
    """For results that would fill the same cells, the settings that tell each from the others; seeds do not."""
    settings = [flat({key: result[key] for key in SETTINGS if key in result}) for result in results]
    names = dict.fromkeys(name for found in settings for name in found)
    differing = [name for name in names if len({repr(found.get(name)) for found in settings}) > 1]
    return [", ".join(f"{name} {str(found.get(name))[:12]}" for name in differing[:3]) for found in settings]


def build_sections(results: Sequence[dict[str, Any]], with_reported: bool = True) -> list[Section]:
    """SUPERB first, then the rest: encoders that were measured and, where they compare, those reported."""
    cells: dict[str, dict[tuple[str, ...], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    labels: dict[tuple[str, str], set[str]] = defaultdict(set)
    for result in results:
        for column, _, _ in scores_of(result):
            labels[section_of(result), column].add(labels_of(result))
    unlike = {place for place, kinds in labels.items() if len(kinds) > 1}
    for result in sorted(results, key=lambda result: (section_of(result) != FULL, section_of(result))):
        columns = tuple(column for column, _, _ in scores_of(result))
        cells[section_of(result)][measured_on(result), result["encoder"]["fingerprint"], *columns].append(result)
    sections = []
    for title, groups in cells.items():
        rows: dict[tuple[str, str], Row] = {}
        rates: dict[str, None] = {}
        for (name, fingerprint, *_), group in groups.items():
            for result, difference in zip(group, told_apart(group), strict=True):
                label = f"{name} ({difference})" if difference else name
                new = Row(label, result["encoder"]["parameters"] / 1e6, reported=False)
                mixed = any((title, column) in unlike for column, _, _ in scores_of(result))
                add(rows.setdefault((label, fingerprint), new), result, labels_of(result) if mixed else "")
                if rate := other_rate(result):
                    rates[f"{label} {rate}"] = None
        others = reported_beside(title) if with_reported else ()
        quoted = [Row(o.name, o.millions, True, {c: [v] for c, v in o.scores.items()}) for o in others]
        ordered = sorted([*rows.values(), *quoted], key=lambda row: (row.group, row.sized, row.name))
        sections.append(Section(title, ordered, list(rates)))
    return sections


def add(row: Row, result: dict[str, Any], labels: str) -> None:
    for column, value, deviation in scores_of(result, labels):
        row.scores.setdefault(column, []).append(value)
        if deviation is not None:
            row.deviations[column] = deviation


def labels_of(result: dict[str, Any]) -> str:
    return str(result.get("labels", "unknown"))[:7]


def other_rate(result: dict[str, Any]) -> str:
    """The learning rate of a task where it is not its protocol's, and whether it was chosen on dev."""
    rate = result.get("learning_rate")
    if rate is None or result["task"] in NEEDED:
        return ""
    swept = len(result.get("dev", {}).get("by_learning_rate", {})) > 1
    if rate == result["protocol"].get("lr") and not swept:
        return ""
    return f"{result['task']} {rate:g}" + (" (swept on dev)" if swept else "")
