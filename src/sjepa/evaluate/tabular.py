"""Format tables as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable, Sequence

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
        lines = [f"## {escape_markdown(section.title)}", "", escape_markdown(section.note), ""]
        head, rows = format_cells(section, "**{}**", "–", escape_markdown)
        lines.append("| " + " | ".join(head) + " |")
        lines.append("| --- |" + " ---: |" * (len(head) - 1))
        for cells in rows:
            named = [f"*{cells}*", *("" for _ in head[1:])] if isinstance(cells, str) else cells
            lines.append("| " + " | ".join(named) + " |")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def to_latex(sections: Sequence[Section]) -> str:
    blocks = []
    for section in sections:
        head, rows = format_cells(section, r"\textbf{{{}}}", "--", escape_latex)
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", rf"{' & '.join(head)} \\"]
        lines += [r"\midrule"] if rows and not isinstance(rows[0], str) else []
        for cells in rows:
            if isinstance(cells, str):
                lines += [r"\midrule", rf"\multicolumn{{{len(head)}}}{{l}}{{\textit{{{cells}}}}} \\", r"\midrule"]
            else:
                lines.append(rf"{' & '.join(cells)} \\".replace("±", r"$\pm$").replace("‡", SPECIAL["‡"]))
        caption = escape_latex(f"{section.title}. {section.note}")
        lines += [r"\bottomrule", rf"\multicolumn{{{len(head)}}}{{l}}{{\footnotesize {caption}}}", r"\end{tabular}"]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def format_cells(
    section: Section, bold: str, none: str, escape: Callable[[str], str]
) -> tuple[list[str], list[list[str] | str]]:
    """Return heading and rows of a section, laid out as in the paper. A row that is a string names a size class."""
    columns, costs = section.columns, section.cost_columns
    dagger = "$^\\dagger$" if escape is escape_latex else " †"
    names = [f"{escape(row.name)}{dagger if row.reported else ''}" for row in section.rows]
    if section.by_task:
        facts: list[list[str] | str] = [["parameters", *map(format_size, section.rows)]]
        facts += [[escape(column), *(format_cost(row, column, none) for row in section.rows)] for column in costs]
        scores = [
            [
                escape(format_heading(section, column)),
                *(format_cell(section, row, column, bold, none) for row in section.rows),
            ]
            for column in columns
        ]
        return [escape("accuracy (%)"), *names], facts + scores
    head = ["encoder", "parameters", *map(escape, [*costs, *(format_heading(section, column) for column in columns)])]
    rows: list[list[str] | str] = []
    known = dict(zip(map(id, section.rows), names, strict=True))
    for name, members in section.classes:
        rows += [escape(name)] if name else []
        for row in members:
            scored = [format_cell(section, row, column, bold, none) for column in columns]
            rows.append(
                [known[id(row)], format_size(row), *(format_cost(row, column, none) for column in costs), *scored]
            )
    return head, rows


# Names may come from other people's files. Escape everything that LaTeX, Markdown or HTML would interpret.
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
