"""The section that shows masked prediction being learned: one stretch of speech, checkpoint by checkpoint."""

from html import escape
from typing import Any

from sjepa.report.blocks import section
from sjepa.report.contents import Report


def masked_frames(report: Report) -> str:
    """A table with a column per frame: what was said, the truth, and what the model predicted at several steps."""
    found = report.found.get("over_training")
    if not found:
        return ""
    moments = found["moments"]
    first, last = moments[0], moments[-1]
    about = (
        f"The model hears “{found['text']}” with the grey frames hidden, and names the component of each from the "
        f"sound around it. Each row is a later checkpoint. In stretches of {found['utterances']} utterances with "
        f"{found['masked_frames']:,} hidden frames, the same for every checkpoint, it is right at "
        f"{first['accuracy']:.1%} of them after {first['step']:,} steps and at {last['accuracy']:.1%} at the end. "
        f"Always naming the most frequent component would be right at {last['chance']:.1%}."
    )
    rows = [head_row(found)]
    phase = None
    for moment in moments:
        if moment["phase"] != phase:
            phase = moment["phase"]
            truth = "".join(
                cell(each, "truth", hidden) for each, hidden in zip(moment["truth"], found["mask"], strict=True)
            )
            count = f"K = {moment['components']}"
            rows.append(f'<tr class="truth"><th scope="row">Truth, phase {phase}</th><td>{count}</td>{truth}</tr>')
        rows.append(row(moment, found["mask"]))
    caption = (
        "Numbers are components of the Gaussian mixture. A hidden frame that is predicted right is blue with a tick; "
        "frames that are not hidden are left empty. The truth changes between phases, as phase 2 has its own mixture."
    )
    table = f'<table class="stretch"><caption class="unseen">{escape(about)}</caption>{"".join(rows)}</table>'
    content = f'<div class="wide" tabindex="0" role="region" aria-label="Masked prediction over training">{table}</div>'
    return section("masked", "Masked prediction, learned", about, f'{content}<p class="about">{escape(caption)}</p>')


def head_row(found: dict[str, Any]) -> str:
    phones = "".join(f'<th scope="col">{escape(phone or "·")}</th>' for phone in found["phones"])
    return f'<tr><th scope="row">Phone</th><td>right</td>{phones}</tr>'


def row(moment: dict[str, Any], mask: list[bool]) -> str:
    cells = "".join(
        cell(predicted, "right" if predicted == truth else "wrong", hidden) if hidden else "<td></td>"
        for predicted, truth, hidden in zip(moment["predicted"], moment["truth"], mask, strict=True)
    )
    return f'<tr><th scope="row">Step {moment["step"]:,}</th><td>{moment["accuracy"]:.0%}</td>{cells}</tr>'


def cell(component: int, kind: str, hidden: bool) -> str:
    tick = "✓" if kind == "right" else ""
    return f'<td class="{kind}{" hidden-frame" if hidden else ""}">{component}{tick}</td>'
