"""Format tables as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Sequence

from sjepa.evaluate.metric import Better
from sjepa.evaluate.table import Row, Section

ARROWS = {Better.LOWER: "↓", Better.HIGHER: "↑", Better.NEITHER: ""}


def format_size(row: Row) -> str:
    """Format the number of parameters."""
    if row.millions is None:
        return "–"
    return f"{row.millions:.1f}M" if row.millions or row.reported else "0"


def format_cell(section: Section, row: Row, column: str, bold: str, none: str) -> str:
    value, deviation = row.value(column), row.deviation(column)
    if value is None:
        return none
    digits = section.metrics[column].digits
    text = f"{value:.{digits}f}"
    if deviation is not None:
        text += f" ± {deviation:.{digits}f}"
    if row.seeds(column) > 1:
        text += f" ({row.seeds(column)} seeds)"
    text = bold.format(text) if section.is_best(row, column) else text
    return f"{text} ‡" if section.is_unswept(row, column) else text


def format_cost(row: Row, column: str, none: str) -> str:
    """Format a cost column of an encoder."""
    value = row.cost.get(column)
    if value is None:
        return none
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def format_heading(section: Section, column: str) -> str:
    return f"{column} {ARROWS[section.metrics[column].better]}".strip()


def to_markdown(sections: Sequence[Section]) -> str:
    blocks = []
    for section in sections:
        columns, costs = section.columns, section.cost_columns
        lines = [f"## {escape_markdown(section.title)}", "", escape_markdown(section.note), ""]
        headings = [*costs, *(format_heading(section, column) for column in columns)]
        lines.append("| encoder | parameters | " + " | ".join(map(escape_markdown, headings)) + " |")
        lines.append("| --- | ---: |" + " ---: |" * len(headings))
        for row in section.rows:
            scores = [format_cell(section, row, column, "**{}**", "–") for column in columns]
            cells = " | ".join([*(format_cost(row, column, "–") for column in costs), *scores])
            lines.append(
                f"| {escape_markdown(row.name)}{' †' if row.reported else ''} | {format_size(row)} | {cells} |"
            )
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def to_latex(sections: Sequence[Section]) -> str:
    blocks = []
    for section in sections:
        columns, costs = section.columns, section.cost_columns
        width = len(columns) + len(costs)
        head = " & ".join(
            escape_latex(text) for text in [*costs, *(format_heading(section, column) for column in columns)]
        )
        lines = [rf"\begin{{tabular}}{{lr{'r' * width}}}", r"\toprule", rf"encoder & parameters & {head} \\"]
        group = -1
        for row in section.rows:
            lines += [r"\midrule"] if row.group != group else []
            group = row.group
            scores = [format_cell(section, row, column, r"\textbf{{{}}}", "--") for column in columns]
            cells = " & ".join([*(format_cost(row, column, "--") for column in costs), *scores])
            mark = r"$^\dagger$" if row.reported else ""
            lines.append(
                rf"{escape_latex(row.name)}{mark} & {format_size(row)} & {cells} \\".replace("±", r"$\pm$").replace(
                    "‡", SPECIAL["‡"]
                )
            )
        caption = escape_latex(f"{section.title}. {section.note}")
        lines += [r"\bottomrule", rf"\multicolumn{{{width + 2}}}{{l}}{{\footnotesize {caption}}}", r"\end{tabular}"]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


# Names come from files, so escape commands, cell separators and HTML.
SPECIAL = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "\n": " ", "\r": " "}
SPECIAL |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
SPECIAL |= {"↓": r"$\downarrow$", "↑": r"$\uparrow$", "†": r"$^\dagger$", "‡": r"$^\ddagger$", "±": r"$\pm$"}
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
