"""Tables of encoders and tasks, from results."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sjepa.evaluate import agreement
from sjepa.evaluate.cost_files import Costs
from sjepa.evaluate.metric import Better, Metric, SectionKind, column_name
from sjepa.evaluate.probe_names import state_name
from sjepa.evaluate.results import EARLIER, REQUIRED, flatten_settings
from sjepa.evaluate.section_key import DEV_CLEAN, DEV_CLEAN_UTTERANCES, SectionKey

# Encoders are compared within size classes, as in the paper.
CLASSES = (90.0, 200.0, math.inf)  # millions of parameters
CLASS_NAMES = ("Below 90M", "Base class (about 95M)", "Large class (316M and more)")
UNSWEPT_SIGN = "‡"  # footnote of scores
UNSWEPT_NOTE = f"{UNSWEPT_SIGN} learning rate not swept; the leaderboard swept it for each row"
# Results that differ in any of these settings are not seeds of one measurement.
SETTINGS = ("protocol", "learning_rate", "data", "units", "precision")


@dataclass
class Row:
    """One encoder in a table."""

    encoder: str
    millions: float | None
    reported: bool
    detail: str = ""
    """The probed layer unless it is the last, and settings in which rows of the encoder differ."""
    scores: dict[str, list[float]] = field(default_factory=dict)
    """One value per seed, by column."""
    known_seeds: dict[str, set[int | None]] = field(default_factory=dict)
    """Seeds of the scores, by column."""
    deviations: dict[str, float] = field(default_factory=dict)
    """Standard deviations over the splits of a single seed, by column."""
    unswept: set[str] = field(default_factory=set)
    """Columns whose learning rate was not swept."""
    cost: dict[str, float] = field(default_factory=dict)
    """Cost of running the encoder, by column."""

    @property
    def name(self) -> str:
        return f"{self.encoder}{self.detail}"

    @property
    def values(self) -> dict[str, float]:
        """The mean over seeds, by column."""
        return {column: float(np.mean(scores)) for column, scores in self.scores.items()}

    def value(self, column: str) -> float | None:
        return self.values.get(column)

    def seeds(self, column: str) -> int:
        return len(self.scores.get(column, ()))

    def deviation(self, column: str) -> float | None:
        """Return the standard deviation over seeds if there are several, otherwise over splits."""
        return float(np.std(self.scores[column])) if self.seeds(column) > 1 else self.deviations.get(column)

    @property
    def assumed_millions(self) -> float:
        """Millions of parameters. A published network without a count is assumed to have base size."""
        return 95.0 if self.millions is None else self.millions

    @property
    def group(self) -> int:
        return next(index for index, most in enumerate(CLASSES) if self.assumed_millions < most)


@dataclass
class Section:
    """One table: rows of encoders, columns of metrics."""

    key: SectionKey
    rows: list[Row]
    metrics: dict[str, Metric]
    """The metric of each column."""
    rates: list[str] = field(default_factory=list)
    """Learning rates that differ from the protocol."""

    @property
    def title(self) -> str:
        return self.key.title

    @property
    def columns(self) -> list[str]:
        """Columns in order of appearance, measured ones first."""
        ordered = sorted(self.rows, key=lambda row: row.reported)
        return list(dict.fromkeys(column for row in ordered for column in row.scores))

    @property
    def cost_columns(self) -> list[str]:
        """Cost columns of all encoders in the table."""
        return sorted({column for row in self.rows for column in row.cost}, reverse=True)

    @property
    def note(self) -> str:
        """Text to print with the table."""
        sentences = [self.key.note]
        if any(row.reported for row in self.rows):
            sentences.append(self.key.reported_note)
        if any(self.is_unswept(row, column) for row in self.rows for column in row.unswept):
            sentences.append(f"{UNSWEPT_NOTE}.")
        if self.rates:
            sentences.append(f"Learning rates that differ from the protocol: {', '.join(self.rates)}.")
        if len(self.rows) > 1:
            sentences.append("Best of each size class in bold.")
        return " ".join(sentences)

    @property
    def classes(self) -> list[tuple[str, list[Row]]]:
        """Name and rows of each size class, as in the paper. Other tables have one class without a name."""
        groups = sorted({row.group for row in self.rows})
        if self.key.kind is not SectionKind.SUPERB or len(groups) < 2:
            return [("", self.rows)]
        return [(CLASS_NAMES[group], [row for row in self.rows if row.group == group]) for group in groups]

    @property
    def by_task(self) -> bool:
        """Whether tasks are rows and encoders are columns, as in the paper's table of probes."""
        return self.key.kind is SectionKind.PROBES

    def is_unswept(self, row: Row, column: str) -> bool:
        """Return whether a learning rate was not swept, in a table with published rows, whose rates were swept."""
        return bool(self.key.reported) and column in row.unswept

    def best(self, column: str, group: int) -> float | None:
        """Return the best value of a column in a size class, or None if fewer than two encoders have a value."""
        values = [v for row in self.rows if row.group == group and (v := row.value(column)) is not None]
        return self.metrics[column].best(values) if len(values) > 1 else None

    def is_best(self, row: Row, column: str) -> bool:
        value, best = row.value(column), self.best(column, row.group)
        return best is not None and value is not None and math.isclose(value, best, abs_tol=5e-5)


def find_section(results: dict[str, Any]) -> SectionKey:
    """Return the section of a result. `find_sections` merges sections of several results."""
    if results["task"] in ("probe", "units"):
        probed = results["task"] == "probe"
        used = results.get("data", {}).get("phone_utterances" if probed else "utterances")
        total = corpus_size(results)
        part = results["corpus"] == DEV_CLEAN and total is not None and total < DEV_CLEAN_UTTERANCES
        kind = SectionKind.PROBES if probed else SectionKind.UNITS
        phones = (used, total) if used and total and used < total else None
        frames = results.get("requested_frames") or None if phones else None
        return SectionKey(kind, results["corpus"], total if part else None, phones, frames)
    if results["protocol"]["name"] == "lite":
        return SectionKey(SectionKind.LITE)
    if "section" in results:
        return SectionKey(SectionKind(results["section"]))
    return SectionKey(lookup_task(results["task"])[0])


def find_sections(results: Sequence[dict[str, Any]]) -> list[SectionKey]:
    """Return the section of each result. Results of the same requested frames share one, whatever their seeds.

    Older results lack the requested number. They join results of as many utterances that have it. Corpora with the
    same name and different labels have their own sections.
    """
    keys = [find_section(result) for result in results]
    sampled = {replace(key, frames=None): replace(key, phones=None) for key in keys if key.frames}
    keys = [replace(key, phones=None) if key.frames else sampled.get(key, key) for key in keys]
    versions: dict[SectionKey, set[str]] = defaultdict(set)
    for key, result in zip(keys, results, strict=True):
        if key.corpus and result.get("labels"):
            versions[key].add(label_version(result))
    return [
        replace(key, labels=label_version(result)) if len(versions[key]) > 1 else key
        for key, result in zip(keys, results, strict=True)
    ]


def corpus_size(results: dict[str, Any]) -> int | None:
    """Return the number of utterances of the corpus of probes or units, used or not."""
    size: int | None = results.get("data", {}).get("utterances" if results["task"] == "probe" else "of_utterances")
    return size


def find_metrics(results: dict[str, Any]) -> dict[str, Metric]:
    """Return the metrics of a result by name."""
    if results["task"] == "probe":
        return {}  # all are accuracies
    if results["task"] == "units":
        return {metric.name: metric for metric in agreement.METRICS}
    if "better" in results:
        return {name: Metric(name, Better(better)) for name, better in results["better"].items()}
    return lookup_task(results["task"])[1]


@cache
def lookup_task(name: str) -> tuple[SectionKind, dict[str, Metric]]:
    """Return section and metrics of a task from its entry, for results that do not contain them."""
    from sjepa.evaluate.superb import TASK_NAMES
    from sjepa.evaluate.superb.tasks import find_entry

    if name not in TASK_NAMES:
        return SectionKind.OTHER, {}
    entry = find_entry(name)
    return entry.section, {metric.name: metric for metric in entry.metrics}


class Score(NamedTuple):
    """One value of a result."""

    column: str
    metric: Metric
    value: float
    deviation: float | None = None


def read_scores(results: dict[str, Any], labels: str = "") -> list[Score]:
    """Read the scores of one `results.json`. `labels` marks columns whose label sets differ within a table."""
    if results["task"] == "probe":
        scores = results["layers"][deepest_layer(results)]
        return [Score(name, Metric(name), score["mean"], score["deviation"]) for name, score in scores.items()]
    known = find_metrics(results)
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


def deepest_layer(results: dict[str, Any]) -> str:
    """Return the deepest probed layer."""
    return list(results["layers"])[-1]


def layer_suffix(results: dict[str, Any]) -> str:
    """Return a comma and the layer of probes, k-means units or ABX, or an empty string if it is the last."""
    states, units = results["encoder"].get("states"), results.get("units", {})
    probed = results["task"] == "probe"
    if states is None or not (probed or units.get("kind") in ("kmeans", "features")):
        return ""
    layer: str = deepest_layer(results) if probed else units["layer"]
    return "" if layer == state_name(states - 1, states) else f", {layer}"


def find_settings(result: dict[str, Any], section: SectionKey) -> dict[str, Any]:
    """Return the settings that all seeds of a measurement share. Counts of random utterances are left out."""
    settings = {key: result[key] for key in SETTINGS if key in result}
    if section.frames is not None:
        settings["data"] = {"corpus utterances": corpus_size(result)}
    return flatten_settings(settings)


def describe_differences(results: Sequence[dict[str, Any]], section: SectionKey) -> list[str]:
    """Return the settings in which results of one measurement differ, except seeds."""
    settings = [find_settings(result, section) for result in results]
    names = dict.fromkeys(name for found in settings for name in found)
    differing = [name for name in names if len({repr(found.get(name)) for found in settings}) > 1]
    return [", ".join(f"{name} {found.get(name)}" for name in differing) for found in settings]


def build_sections(
    results: Sequence[dict[str, Any]],
    with_reported: bool = True,
    costs: Costs | None = None,
    across_encoders: bool = False,
) -> list[Section]:
    """Build all sections, SUPERB first, with measured encoders and comparable published ones. Copies count once.

    Rows name the settings in which results of an encoder differ. With `across_encoders`, they name the settings in
    which results of any two encoders differ, for checkpoints of one run.
    """
    results = drop_copies(results)
    cells: dict[SectionKey, dict[tuple[str, ...], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    labels: dict[tuple[SectionKey, str], set[str]] = defaultdict(set)
    placed = sorted(zip(find_sections(results), results, strict=True), key=lambda pair: pair[0].order)
    for key, result in placed:
        for score in read_scores(result):
            labels[key, score.column].add(label_version(result))
        encoder = () if across_encoders else (result["encoder"]["name"], result["encoder"]["fingerprint"])
        cells[key][*encoder, layer_suffix(result), name_measurement(result)].append(result)
    unlike = {where for where, kinds in labels.items() if len(kinds) > 1}
    sections = []
    for key, groups in cells.items():
        rows: dict[tuple[str, str, str], Row] = {}
        metrics: dict[str, Metric] = {}
        rates: dict[str, None] = {}
        for group in groups.values():
            for result, difference in zip(group, describe_differences(group, key), strict=True):
                name, fingerprint = result["encoder"]["name"], result["encoder"]["fingerprint"]
                detail = layer_suffix(result) + (f" ({difference})" if difference else "")
                new = Row(name, result["encoder"]["parameters"] / 1e6, False, detail)
                row = rows.setdefault((name, detail, fingerprint), new)
                row.cost = (costs or {}).get((name.removesuffix(EARLIER), fingerprint), {})
                mixed = any((key, score.column) in unlike for score in read_scores(result))
                scores = read_scores(result, label_version(result) if mixed else "")
                metrics |= {score.column: score.metric for score in scores}
                add_scores(row, scores, result.get("seed"))
                row.unswept |= {score.column for score in scores if not is_swept(result)}
                if rate := format_custom_rate(result):
                    rates[f"{row.name} {rate}"] = None
        others = key.reported if with_reported else ()
        metrics |= {column: metric for other in others for column, metric in other.metrics.items()}
        quoted = [
            Row(o.name, o.millions, True, scores={c: [v] for c, v in o.scores.items()}, deviations=o.deviations)
            for o in others
        ]
        ordered = sorted([*rows.values(), *quoted], key=lambda row: (row.group, row.assumed_millions, row.name))
        sections.append(Section(key, ordered, metrics, list(rates)))
    return sections


def drop_copies(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop results of equal contents, such as the same file found through two folders."""
    return list({json.dumps(result, sort_keys=True): result for result in results}.values())


def name_measurement(result: dict[str, Any]) -> str:
    """Return a name that results share if they differ only in settings, seeds and additional scores.

    The additional scores are those of `--language-model`, `--abx` and `--prosody`. They follow the others.
    """
    return "probe" if result["task"] == "probe" else next((score.column for score in read_scores(result)), "")


def add_scores(row: Row, scores: Sequence[Score], seed: int | None) -> None:
    """Add the scores of a seed. If it was measured before, the first score counts. An unknown seed is a new one."""
    for score in scores:
        seeds = row.known_seeds.setdefault(score.column, set())
        if seed is not None and seed in seeds:
            continue
        seeds.add(seed)
        row.scores.setdefault(score.column, []).append(score.value)
        if score.deviation is not None:
            row.deviations[score.column] = score.deviation


def label_version(result: dict[str, Any]) -> str:
    """Return a short identifier of the label set."""
    return str(result.get("labels", "unknown"))[:7]


def is_swept(result: dict[str, Any]) -> bool:
    """Return whether the learning rate was chosen on dev, or the result has none."""
    return "learning_rate" not in result or len(result.get("dev", {}).get("by_learning_rate", {})) > 1


def format_custom_rate(result: dict[str, Any]) -> str:
    """Return the learning rate of a task if it differs from the protocol, or an empty string."""
    rate = result.get("learning_rate")
    if rate is None or result["task"] in REQUIRED or rate == result["protocol"].get("lr"):
        return ""
    return f"{result['task']} {rate:g}"
