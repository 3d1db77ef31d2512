"""Format tables as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sjepa.evaluate.metric import Better
from sjepa.evaluate.probe_names import name_scores
from sjepa.evaluate.section_key import REPORTED_SIGN
from sjepa.evaluate.table import UNSWEPT_SIGN, Row, Section

ARROWS = {Better.LOWER: "↓", Better.HIGHER: "↑", Better.NEITHER: ""}
NO_VALUE = "–"


@dataclass(frozen=True)
class Cell:
    """One cell of a table. Each format writes bold text, signs and missing values in its own way."""

    text: str | None
    """None if there is no value."""
    bold: bool = False
    sign: str = ""
    """A footnote sign to write after the text."""

    @property
    def plain(self) -> str:
        """The text with its sign, for formats without markup."""
        text = NO_VALUE if self.text is None else self.text
        return f"{text} {self.sign}" if self.sign else text


@dataclass(frozen=True)
class FormattedTable:
    """The cells of a section, laid out as in the paper."""

    head: list[Cell]
    groups: list[tuple[str, list[list[Cell]]]]
    """Name and rows of each size class. A single group has an empty name."""


def format_table(section: Section) -> FormattedTable:
    """Lay out a section: one row per encoder, or one row per task for probes."""
    columns, costs = section.columns, section.cost_columns
    headings = [Cell(format_heading(section, column)) for column in columns]
    if section.by_task:
        rows = [[Cell("parameters"), *(Cell(format_parameters(row)) for row in section.rows)]]
        rows += [[Cell(column), *(Cell(format_cost(row, column)) for row in section.rows)] for column in costs]
        rows += [
            [heading, *(format_score(section, row, column) for row in section.rows)]
            for heading, column in zip(headings, columns, strict=True)
        ]
        return FormattedTable([Cell(f"{name_scores(columns)} (%)"), *map(format_name, section.rows)], [("", rows)])
    head = [Cell("encoder"), Cell("parameters"), *map(Cell, costs), *headings]
    groups = [(name, [format_row(section, row) for row in members]) for name, members in section.classes]
    return FormattedTable(head, groups)


def format_row(section: Section, row: Row) -> list[Cell]:
    """Format name, size, costs and scores of an encoder."""
    costs = [Cell(format_cost(row, column)) for column in section.cost_columns]
    scores = [format_score(section, row, column) for column in section.columns]
    return [format_name(row), Cell(format_parameters(row)), *costs, *scores]


def format_name(row: Row) -> Cell:
    return Cell(row.name, sign=REPORTED_SIGN if row.reported else "")


def format_parameters(row: Row) -> str | None:
    """Format the number of parameters."""
    if row.millions is None:
        return None
    return f"{row.millions:.1f}M" if row.millions or row.reported else "0"


def format_cost(row: Row, column: str) -> str | None:
    """Format a cost column of an encoder."""
    value = row.cost.get(column)
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def format_score(section: Section, row: Row, column: str) -> Cell:
    value, deviation = row.value(column), row.deviation(column)
    if value is None:
        return Cell(None)
    digits = section.metrics[column].digits
    text = f"{value:.{digits}f}"
    if deviation is not None:
        text += f" ± {deviation:.{digits}f}"
    if row.seeds(column) > 1:
        text += f" ({row.seeds(column)} seeds)"
    sign = UNSWEPT_SIGN if section.is_unswept(row, column) else ""
    return Cell(text, section.is_best(row, column), sign)


def format_heading(section: Section, column: str) -> str:
    return f"{column} {ARROWS[section.metrics[column].better]}".strip()


def to_markdown(sections: Sequence[Section], level: int = 2) -> str:
    """Format all sections, each below a heading of the given level."""
    blocks = []
    for section in sections:
        lines = [f"{'#' * level} {escape_markdown(section.title)}", "", escape_markdown(section.note), ""]
        table = format_table(section)
        lines.append(markdown_row(map(markdown_cell, table.head)))
        lines.append("| --- |" + " ---: |" * (len(table.head) - 1))
        for name, rows in table.groups:
            if name:
                lines.append(markdown_row([f"*{escape_markdown(name)}*", *("" for _ in table.head[1:])]))
            lines += [markdown_row(map(markdown_cell, row)) for row in rows]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown_cell(cell: Cell) -> str:
    text = NO_VALUE if cell.text is None else escape_markdown(cell.text)
    text = f"**{text}**" if cell.bold else text
    return f"{text} {cell.sign}" if cell.sign else text


def to_latex(sections: Sequence[Section]) -> str:
    blocks = []
    for section in sections:
        table = format_table(section)
        width = len(table.head)
        lines = [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule", latex_row(table.head)]
        for name, rows in table.groups:
            lines.append(r"\midrule")
            if name:
                lines += [rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape_latex(name)}}}}} \\", r"\midrule"]
            lines += map(latex_row, rows)
        caption = escape_latex(f"{section.title}. {section.note}")
        lines += [r"\bottomrule", rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {caption}}}", r"\end{tabular}"]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def latex_row(cells: Iterable[Cell]) -> str:
    return rf"{' & '.join(map(latex_cell, cells))} \\"


def latex_cell(cell: Cell) -> str:
    text = "--" if cell.text is None else escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.bold else text
    return text + LATEX_SIGNS[cell.sign]


# Names may come from other people's files. Escape everything that LaTeX, Markdown or HTML would interpret.
SPECIAL = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "\n": " ", "\r": " "}
SPECIAL |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
SPECIAL |= {"↓": r"$\downarrow$", "↑": r"$\uparrow$", "†": r"$^\dagger$", "‡": r"$^\ddagger$", "±": r"$\pm$"}
LATEX_SIGNS = {"": "", REPORTED_SIGN: SPECIAL["†"], UNSWEPT_SIGN: f" {SPECIAL['‡']}"}
MARKDOWN = {character: f"\\{character}" for character in "\\`*[]|"} | {"<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "}


def escape_latex(text: str) -> str:
    return "".join(SPECIAL.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    return "".join(MARKDOWN.get(character, character) for character in text)


def to_csv(sections: Sequence[Section]) -> str:
    """Format one value per line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [
        "table",
        "encoder",
        "source",
        "parameters_millions",
        "column",
        "value",
        "deviation",
        "seeds",
        "best",
        "swept",
    ]
    writer.writerow(columns)
    for section in sections:
        for row in section.rows:
            for column in row.scores:
                source = "reported" if row.reported else "measured"
                deviation = row.deviation(column)
                spread = "" if deviation is None else f"{deviation:.6g}"
                millions = "" if row.millions is None else f"{row.millions:.6g}"
                value, best = f"{row.value(column):.6g}", int(section.is_best(row, column))
                swept = int(column not in row.unswept)
                known = [section.title, row.name, source, millions, column, value, spread, row.seeds(column)]
                writer.writerow([*known, best, swept])
            for column, spent in row.cost.items():
                measured = [section.title, row.name, "measured", f"{row.millions:.6g}"]
                writer.writerow([*measured, column, f"{spent:.6g}", "", 1, 0, 1])
    return out.getvalue()
