"""One table of many encoders and tasks, from the `results.json` files below some folders."""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sjepa.errors import UserError
from sjepa.evaluate import reported

Format = Literal["markdown", "csv", "latex"]
FULL, OTHER, LITE = "SUPERB", "Full protocol, not part of SUPERB", "Lite protocols"
DEV_CLEAN = "Probes on LibriSpeech dev-clean"
NOT_SUPERB = ("ravdess", "coffee")
LOWER = ("wer", "cer", "per", "abx_within", "abx_across")
NEITHER = ("perplexity", "units_used")  # more is not better
# Encoders are compared with those of their size, as in the paper.
CLASSES = (90.0, 200.0, math.inf)  # millions of parameters
REPORTED = {FULL: reported.SUPERB, DEV_CLEAN: reported.PROBES}
MARK = "† reported by others, not measured here"


@dataclass
class Row:
    name: str
    millions: float | None
    reported: bool
    scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    deviations: dict[str, float] = field(default_factory=dict)

    def value(self, column: str) -> float | None:
        """Over several seeds, the mean."""
        return float(np.mean(self.scores[column])) if column in self.scores else None

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

    @property
    def columns(self) -> list[str]:
        """In order of appearance, measured ones first."""
        ordered = sorted(self.rows, key=lambda row: row.reported)
        return list(dict.fromkeys(column for row in ordered for column in row.scores))

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


def find_results(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """All `results.json` at or below the folders."""
    files: dict[Path, None] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"there is no folder {folder}")
        files.update(dict.fromkeys(sorted(folder.rglob("results.json"))))
    if not files:
        raise UserError("no results.json below these folders: `sjepa superb`, `probe` and `units` write them")
    found = []
    for file in files:
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            found += [results] if {"task", "encoder"} <= results.keys() else []
        except ValueError as error:
            raise UserError(f"{file} is not JSON: {error}") from error
    return found


def section_of(results: dict[str, Any]) -> str:
    """A table holds what was measured on the same data by the same protocol."""
    if results["task"] in ("probe", "units"):
        return f"{results['task'].capitalize().rstrip('s')}s on {results['corpus']}"
    if results["protocol"]["name"] == "lite":
        return LITE
    return OTHER if results["task"] in NOT_SUPERB else FULL


def note(title: str) -> str:
    """What must be said with a table."""
    if title == LITE:
        return "Reduced protocols: fewer steps, less data, a narrower recurrent head. Not comparable with full results."
    if title == DEV_CLEAN:
        return f"Accuracy in percent, mean ± deviation over splits. {MARK}, with 67 phonemes of another alignment."
    if title.startswith("Probes"):
        return "Accuracy in percent, mean ± deviation over splits."
    if title.startswith("Units"):
        return "Agreement of discrete units with phones; ABX error in percent."
    return f"Percent, ↓ lower is better. {MARK}." if title == FULL else "Percent."


def scores_of(results: dict[str, Any]) -> Iterable[tuple[str, float, float | None]]:
    """Columns, values and deviations of one `results.json`."""
    if results["task"] == "probe":
        last = list(results["layers"])[-1]
        for name, score in results["layers"][last].items():
            yield name, score["mean"], score["deviation"]
        return
    if results["task"] == "units":
        kind = results["units"]["kind"] + (f" {results['units']['clusters']}" if results["units"]["clusters"] else "")
        for name, value in results["metrics"].items():
            yield f"{kind} {name}", value, None
        return
    lite = results["protocol"]["name"] == "lite"
    title = f"{results['task']}-lite, {results['protocol']['steps']:,} steps," if lite else results["task"]
    for name, value in results["metrics"].items():
        yield f"{title} {name}", value, None
    for decoder, metrics in results["decoded"].items():
        for name, value in metrics.items():
            yield f"{title}+lm ({decoder}) {name}", value, None


def build_sections(results: Sequence[dict[str, Any]], with_reported: bool = True) -> list[Section]:
    """SUPERB first, then the rest: encoders that were measured and, where they compare, those reported."""
    rows: dict[str, dict[tuple[str, str], Row]] = defaultdict(dict)
    for result in sorted(results, key=lambda result: (section_of(result) != FULL, section_of(result))):
        encoder = result["encoder"]
        key = (encoder["name"], encoder["fingerprint"])
        row = rows[section_of(result)].setdefault(key, Row(key[0], encoder["parameters"] / 1e6, reported=False))
        for column, value, deviation in scores_of(result):
            row.scores[column].append(value)
            if deviation is not None:
                row.deviations[column] = deviation
    sections = []
    for title, measured in rows.items():
        others = REPORTED.get(title, []) if with_reported else []
        quoted = [Row(o.name, o.millions, True, {c: [v] for c, v in o.scores.items()}) for o in others]
        ordered = sorted([*measured.values(), *quoted], key=lambda row: (row.group, row.sized, row.name))
        sections.append(Section(title, ordered))
    return sections


def size(row: Row) -> str:
    """Counted for measured encoders; as reported for others."""
    if row.millions is None:
        return "–"
    return f"{row.millions:.1f}M" if row.millions or row.reported else "0"


def cell(section: Section, row: Row, column: str, bold: str, none: str) -> str:
    value = row.value(column)
    if value is None:
        return none
    text = f"{value:.{digits(column)}f}"
    if column in row.deviations:
        text += f" ± {row.deviations[column]:.2f}"
    return bold.format(text) if section.is_best(row, column) else text


def digits(column: str) -> int:
    if column.endswith(("purity", "pnmi")):
        return 3
    return 0 if column.endswith("units_used") else 2


def heading(column: str) -> str:
    return f"{column} {'' if column.endswith(NEITHER) else '↓' if lower_is_better(column) else '↑'}".strip()


def markdown(sections: Sequence[Section]) -> str:
    blocks = []
    for section in sections:
        columns = section.columns
        lines = [f"## {section.title}", "", note(section.title) + " Best of its size class in bold.", ""]
        lines.append("| encoder | parameters | " + " | ".join(map(heading, columns)) + " |")
        lines.append("| --- | ---: |" + " ---: |" * len(columns))
        for row in section.rows:
            cells = " | ".join(cell(section, row, column, "**{}**", "–") for column in columns)
            lines.append(f"| {row.name}{' †' if row.reported else ''} | {size(row)} | {cells} |")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def latex(sections: Sequence[Section]) -> str:
    blocks = []
    for section in sections:
        columns = section.columns
        head = " & ".join(escaped(heading(column)) for column in columns)
        lines = [rf"\begin{{tabular}}{{lr{'r' * len(columns)}}}", r"\toprule", rf"encoder & parameters & {head} \\"]
        group = -1
        for row in section.rows:
            lines += [r"\midrule"] if row.group != group else []
            group = row.group
            cells = " & ".join(cell(section, row, column, r"\textbf{{{}}}", "--") for column in columns)
            mark = r"$^\dagger$" if row.reported else ""
            lines.append(rf"{escaped(row.name)}{mark} & {size(row)} & {cells} \\".replace("±", r"$\pm$"))
        lines += [r"\bottomrule", r"\end{tabular}", rf"% {section.title}: {note(section.title)}"]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def escaped(text: str) -> str:
    for plain, written in (("_", r"\_"), ("%", r"\%"), ("&", r"\&"), ("↓", r"$\downarrow$"), ("↑", r"$\uparrow$")):
        text = text.replace(plain, written)
    return text


def as_csv(sections: Sequence[Section]) -> str:
    """One value a line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "encoder", "source", "parameters_millions", "column", "value", "deviation", "best"])
    for section in sections:
        for row in section.rows:
            for column in row.scores:
                source = "reported" if row.reported else "measured"
                value, deviation = row.value(column), row.deviations.get(column, "")
                millions = "" if row.millions is None else f"{row.millions:.6g}"
                best = int(section.is_best(row, column))
                writer.writerow([section.title, row.name, source, millions, column, f"{value:.6g}", deviation, best])
    return out.getvalue()
