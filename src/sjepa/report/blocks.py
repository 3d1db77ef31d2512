"""Parts of a page: sections, figures, cards, tables. All outside text is escaped here."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

from sjepa.evaluate.tabular import Cell
from sjepa.files import dump_json
from sjepa.report.charts import Chart

Subject = TypeVar("Subject")
"""What a page is about: one report or several."""


@dataclass(frozen=True)
class SectionBody:
    """What a section shows below its title."""

    about: str
    content: str
    """HTML."""


@dataclass(frozen=True)
class PageSection(Generic[Subject]):
    """A section of a page and its link in the navigation."""

    anchor: str
    link: str
    title: str
    make_body: Callable[[Subject], SectionBody | None]
    """Returns None if there is nothing to show. The page then leaves the section out."""
    needs_log: bool = False
    """Whether it is left out while the run has not logged a line."""


def render_sections(sections: Iterable[PageSection[Subject]], subject: Subject) -> tuple[str, str]:
    """Return the links to all sections that have a body, and their HTML."""
    bodies = [(section, section.make_body(subject)) for section in sections]
    shown = [(section, body) for section, body in bodies if body is not None]
    links = "".join(f'<a href="#{section.anchor}">{escape(section.link)}</a>' for section, _ in shown)
    return links, "\n".join(render_section(section, body) for section, body in shown)


def render_section(section: PageSection[Subject], body: SectionBody) -> str:
    about = f'<p class="about">{prose(body.about)}</p>' if body.about else ""
    return f'<section id="{section.anchor}"><h2>{escape(section.title)}</h2>{about}{body.content}</section>'


def prose(text: str) -> str:
    """Escaped text in which `backticks` mark code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def figure(name: str, title: str, chart: Chart, caption: str) -> str:
    """A chart with its caption. The script of the page draws it from the JSON next to it."""
    words = escape(f"{title}. {caption}".replace("`", ""))
    height = chart["layout"]["height"]  # kept free until the chart is drawn, so that nothing on the page moves then
    return (
        f"<figure><h3>{escape(title)}</h3>"
        f'<div id="{name}" class="chart" style="min-height: {height}px" role="img" aria-label="{words}"></div>'
        f'<script type="application/json" data-chart="{name}">{as_script(chart)}</script>'
        f"<figcaption>{prose(caption)}</figcaption></figure>"
    )


def as_script(value: Any) -> str:
    """JSON for a script element. No text in it can close the element."""
    return dump_json(value, allow_nan=False).replace("<", "\\u003c")


def card(label: str, value: str, remark: str, kind: str = "plain") -> str:
    """A number with its name above and a remark below it. Its unit, if any, stays on the same line."""
    number, _, unit = value.partition(" ")
    shown = escape(number) + (f' <span class="unit">{escape(unit)}</span>' if unit else "")
    words = f'<dt>{escape(label)}</dt><dd><span class="value">{shown}</span><small>{prose(remark)}</small></dd>'
    return f'<div class="{kind}">{words}</div>'


def note(text: str) -> str:
    return f'<p class="note">{prose(text)}</p>'


def folded(summary: str, content: str) -> str:
    """Details that a reader opens. `content` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def pairs(values: dict[str, Any], name: str = "") -> str:
    """Names and values, one pair per row."""
    rows = "".join(
        f"<tr><th>{escape(str(key))}</th><td>{escape(str(value))}</td></tr>" for key, value in values.items()
    )
    return f"<table>{f'<caption>{escape(name)}</caption>' if name else ''}{rows}</table>"


def table(head: Iterable[Cell], rows: Iterable[Iterable[Cell]]) -> str:
    """A table with a heading row."""
    heads = "".join(f'<th scope="col">{escape(cell.plain)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(map(table_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table class="scores"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def table_cell(cell: Cell) -> str:
    text = escape(cell.plain)
    return f"<td><b>{text}</b></td>" if cell.bold else f"<td>{text}</td>"
