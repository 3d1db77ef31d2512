"""Many encoders and tasks side by side, from the `results.json` files below some folders."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sjepa.errors import UserError
from sjepa.evaluate import agreement, reported
from sjepa.evaluate.metric import Better, Metric, SectionKind, column_name
from sjepa.fields import NUMBER, TABLE, TEXT, WHOLE, Kind, check_fields, list_of, one_of, optional, require, table_of
from sjepa.files import read_json

if TYPE_CHECKING:  # counting costs needs torch, and tables do not
    from sjepa.evaluate.cost import Costs

TITLES = {
    SectionKind.SUPERB: "SUPERB",
    SectionKind.OTHER: "Full protocol, not part of SUPERB",
    SectionKind.LITE: "Lite protocols",
    SectionKind.PROBES: "Probes",
    SectionKind.UNITS: "Units",
}
DEV_CLEAN, DEV_CLEAN_UTTERANCES = "LibriSpeech dev-clean", 2703
# Encoders are compared with those of their size, as in the paper.
CLASSES = (90.0, 200.0, math.inf)  # millions of parameters
CLASS_NAMES = ("Below 90M", "Base class (about 95M)", "Large class (316M and more)")
MARK = "† reported by others, not measured here"
UNSWEPT_MARK = "‡ learning rate not swept; the board swept it for each of its rows"
# What a result has beside its outcome: results that differ in any of it are not seeds of one measurement.
SETTINGS = ("protocol", "learning_rate", "data", "units", "precision")
NEEDED = {"probe": {"layers", "corpus"}, "units": {"units", "metrics", "corpus"}}
NEEDED_OF_TASKS = {"protocol", "metrics", "decoded"}


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
}
ENCODER_FIELDS = {"name": TEXT, "parameters": WHOLE, "fingerprint": TEXT, "states": optional(WHOLE)}


@dataclass
class Row:
    name: str
    millions: float | None
    reported: bool
    scores: dict[str, list[float]] = field(default_factory=dict)
    """One value of each seed."""
    deviations: dict[str, float] = field(default_factory=dict)
    """Over the splits of a single seed."""
    unswept: set[str] = field(default_factory=set)
    """Columns whose learning rate was not swept."""
    cost: dict[str, float] = field(default_factory=dict)
    """What the encoder costs to run, by column."""

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


@dataclass(frozen=True)
class Place:
    """Which section of a table a result stands in: what was measured on the same data by the same protocol."""

    kind: SectionKind
    corpus: str = ""
    """Of probes and units."""
    total: int | None = None
    """Utterances of the corpus that was given, where it is not the whole of it."""
    phones: tuple[int, int] | None = None
    """Utterances whose phones were used, of so many, where they are not all."""

    @property
    def title(self) -> str:
        title = TITLES[self.kind]
        title += f" on {self.corpus}" if self.corpus else ""
        title += f", only {self.total:,} utterances of it" if self.total is not None else ""
        return title + (f", phones of {self.phones[0]:,} of {self.phones[1]:,} utterances" if self.phones else "")

    @property
    def order(self) -> tuple[int, str]:
        return list(SectionKind).index(self.kind), self.title

    @property
    def reported(self) -> Sequence[reported.Reported]:
        """What others reported on the same data; the phones of a part of dev-clean are compared with those of all."""
        if self.kind is SectionKind.PROBES and self.corpus == DEV_CLEAN and self.total is None:
            return reported.PROBES
        return reported.SUPERB if self.kind is SectionKind.SUPERB else ()

    @property
    def note(self) -> str:
        """What must be said with the section."""
        if self.kind is SectionKind.LITE:
            text = "Reduced protocols: fewer steps, less data, a narrower recurrent head."
            return f"{text} Not comparable with full results."
        if self.kind is SectionKind.PROBES:
            text = "Accuracy in percent, mean ± deviation over splits."
            return f"{text} {MARK}, with 67 phonemes of another alignment." if self.reported else text
        if self.kind is SectionKind.UNITS:
            return "Agreement of discrete units with phones; ABX error in percent."
        return f"Percent, ↓ lower is better. {MARK}." if self.kind is SectionKind.SUPERB else "Percent."


@dataclass
class Section:
    place: Place
    rows: list[Row]
    metrics: dict[str, Metric]
    """The metric of each column."""
    rates: list[str] = field(default_factory=list)
    """Learning rates that are not the protocol's."""

    @property
    def title(self) -> str:
        return self.place.title

    @property
    def columns(self) -> list[str]:
        """In order of appearance, measured ones first."""
        ordered = sorted(self.rows, key=lambda row: row.reported)
        return list(dict.fromkeys(column for row in ordered for column in row.scores))

    @property
    def cost_columns(self) -> list[str]:
        """What is known of the cost of any encoder in the table."""
        return sorted({column for row in self.rows for column in row.cost}, reverse=True)

    @property
    def note(self) -> str:
        """What must be said with the table."""
        chosen = f" Learning rates other than the protocol's: {', '.join(self.rates)}." if self.rates else ""
        unswept = any(self.is_unswept(row, column) for row in self.rows for column in row.unswept)
        return self.place.note + (f" {UNSWEPT_MARK}." if unswept else "") + chosen + " Best of its size class in bold."

    @property
    def classes(self) -> list[tuple[str, list[Row]]]:
        """Rows below the name of their size class, as in the paper; without names where the paper has none."""
        groups = sorted({row.group for row in self.rows})
        if self.place.kind is not SectionKind.SUPERB or len(groups) < 2:
            return [("", self.rows)]
        return [(CLASS_NAMES[group], [row for row in self.rows if row.group == group]) for group in groups]

    @property
    def by_task(self) -> bool:
        """Whether tasks are the rows and encoders the columns, as in the paper's table of probes."""
        return self.place.kind is SectionKind.PROBES

    def is_unswept(self, row: Row, column: str) -> bool:
        """Whether a learning rate was not swept where those beside it were: all that the board reports."""
        return bool(self.place.reported) and column in row.unswept

    def best(self, column: str, group: int) -> float | None:
        """The best value of a column among encoders of a class; none where a single one has a value."""
        values = [v for row in self.rows if row.group == group and (v := row.value(column)) is not None]
        return self.metrics[column].best(values) if len(values) > 1 else None

    def is_best(self, row: Row, column: str) -> bool:
        value, best = row.value(column), self.best(column, row.group)
        return best is not None and value is not None and math.isclose(value, best, abs_tol=5e-5)


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
        if is_ours(results):
            check_results(results, str(file))
            found.append(results)
    return found


def is_ours(results: Any) -> bool:
    """Others write files of this name too."""
    if not isinstance(results, dict) or not {"task", "encoder"} <= results.keys():
        return False
    known = isinstance(results["encoder"], dict) and {"name", "parameters", "fingerprint"} <= results["encoder"].keys()
    return known and NEEDED.get(str(results["task"]), NEEDED_OF_TASKS) <= results.keys()


def check_results(results: dict[str, Any], file: str) -> None:
    """Refuse results whose fields have values that they may not have."""
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


def place_of(results: dict[str, Any]) -> Place:
    """The section that a result stands in."""
    if results["task"] in ("probe", "units"):
        probed = results["task"] == "probe"
        data = results.get("data", {})
        used = data.get("phone_utterances" if probed else "utterances")
        total = data.get("utterances" if probed else "of_utterances")
        part = results["corpus"] == DEV_CLEAN and total is not None and total < DEV_CLEAN_UTTERANCES
        kind = SectionKind.PROBES if probed else SectionKind.UNITS
        phones = (used, total) if used and total and used < total else None
        return Place(kind, results["corpus"], total if part else None, phones)
    if results["protocol"]["name"] == "lite":
        return Place(SectionKind.LITE)
    if "section" in results:
        return Place(SectionKind(results["section"]))
    return Place(listed_task(results["task"])[0])


def metrics_of(results: dict[str, Any]) -> dict[str, Metric]:
    """The metrics of a result by name."""
    if results["task"] == "probe":
        return {}  # accuracies all
    if results["task"] == "units":
        return {metric.name: metric for metric in agreement.METRICS}
    if "better" in results:
        return {name: Metric(name, Better(better)) for name, better in results["better"].items()}
    return listed_task(results["task"])[1]


@cache
def listed_task(name: str) -> tuple[SectionKind, dict[str, Metric]]:
    """Section and metrics of a task by its entry, for results that do not hold them."""
    from sjepa.evaluate.superb import TASK_NAMES
    from sjepa.evaluate.superb.tasks import find_entry

    if name not in TASK_NAMES:
        return SectionKind.OTHER, {}
    entry = find_entry(name)
    return entry.section, {metric.name: metric for metric in entry.metrics}


class Score(NamedTuple):
    column: str
    metric: Metric
    value: float
    deviation: float | None = None


def scores_of(results: dict[str, Any], labels: str = "") -> list[Score]:
    """The scores in one `results.json`; `labels` tells a task's from others in the same table."""
    if results["task"] == "probe":
        scores = results["layers"][probed_layer(results)]
        return [Score(name, Metric(name), score["mean"], score["deviation"]) for name, score in scores.items()]
    known = metrics_of(results)
    if results["task"] == "units":
        kind = results["units"]["kind"] + (f" {results['units']['clusters']}" if results["units"]["clusters"] else "")
        return [
            Score(f"{kind} {name}", known.get(name, Metric(name)), value) for name, value in results["metrics"].items()
        ]
    title = results["task"]
    if results["protocol"]["name"] == "lite":
        hours = [fold["train_hours"] for fold in results.get("data", ())]
        title += f"-lite, {results['protocol']['steps']:,} steps,"
        title += f" {np.mean(hours):.2g} h," if hours else ""
    title += f" labels {labels}," if labels else ""
    return [
        Score(column_name(title, name, decoder), known.get(name, Metric(name)), value)
        for decoder, metrics in {"": results["metrics"], **results["decoded"]}.items()
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


def distinguish(results: Sequence[dict[str, Any]]) -> list[str]:
    """For results that would fill the same cells, the settings that tell each from the others; seeds do not."""
    settings = [flat({key: result[key] for key in SETTINGS if key in result}) for result in results]
    names = dict.fromkeys(name for found in settings for name in found)
    differing = [name for name in names if len({repr(found.get(name)) for found in settings}) > 1]
    return [", ".join(f"{name} {str(found.get(name))[:12]}" for name in differing[:3]) for found in settings]


def build_sections(
    results: Sequence[dict[str, Any]], with_reported: bool = True, costs: "Costs | None" = None
) -> list[Section]:
    """SUPERB first, then the rest: encoders that were measured and, where they compare, those reported."""
    cells: dict[Place, dict[tuple[str, ...], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    labels: dict[tuple[Place, str], set[str]] = defaultdict(set)
    for result in results:
        for score in scores_of(result):
            labels[place_of(result), score.column].add(labels_of(result))
    unlike = {where for where, kinds in labels.items() if len(kinds) > 1}
    for result in sorted(results, key=lambda result: place_of(result).order):
        columns = tuple(score.column for score in scores_of(result))
        cells[place_of(result)][measured_on(result), result["encoder"]["fingerprint"], *columns].append(result)
    sections = []
    for place, groups in cells.items():
        rows: dict[tuple[str, str], Row] = {}
        metrics: dict[str, Metric] = {}
        rates: dict[str, None] = {}
        for (name, fingerprint, *_), group in groups.items():
            for result, difference in zip(group, distinguish(group), strict=True):
                label = f"{name} ({difference})" if difference else name
                row = rows.setdefault((label, fingerprint), Row(label, result["encoder"]["parameters"] / 1e6, False))
                row.cost = (costs or {}).get((result["encoder"]["name"], fingerprint), {})
                mixed = any((place, score.column) in unlike for score in scores_of(result))
                scores = scores_of(result, labels_of(result) if mixed else "")
                metrics |= {score.column: score.metric for score in scores}
                add(row, scores)
                row.unswept |= {score.column for score in scores if not is_swept(result)}
                if rate := other_rate(result):
                    rates[f"{label} {rate}"] = None
        others = place.reported if with_reported else ()
        metrics |= {column: metric for other in others for column, metric in other.metrics.items()}
        quoted = [Row(o.name, o.millions, True, {c: [v] for c, v in o.scores.items()}, o.deviations) for o in others]
        ordered = sorted([*rows.values(), *quoted], key=lambda row: (row.group, row.sized, row.name))
        sections.append(Section(place, ordered, metrics, list(rates)))
    return sections


def add(row: Row, scores: Sequence[Score]) -> None:
    for score in scores:
        row.scores.setdefault(score.column, []).append(score.value)
        if score.deviation is not None:
            row.deviations[score.column] = score.deviation


def labels_of(result: dict[str, Any]) -> str:
    return str(result.get("labels", "unknown"))[:7]


def is_swept(result: dict[str, Any]) -> bool:
    """Whether the learning rate was chosen on dev, if the result has one."""
    return "learning_rate" not in result or len(result.get("dev", {}).get("by_learning_rate", {})) > 1


def other_rate(result: dict[str, Any]) -> str:
    """The learning rate of a task where it is not its protocol's."""
    rate = result.get("learning_rate")
    if rate is None or result["task"] in NEEDED or rate == result["protocol"].get("lr"):
        return ""
    return f"{result['task']} {rate:g}"
