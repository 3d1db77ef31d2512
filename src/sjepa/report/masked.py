"""The section on masked prediction over training: one stretch of speech, checkpoint by checkpoint."""

from html import escape
from typing import Any

from sjepa.report.blocks import SectionBody, prose
from sjepa.report.contents import Report


def masked_frames(report: Report) -> SectionBody | None:
    """A table with one column per frame: the phone, the target, and what the model predicted at several steps."""
    found = report.found.get("over_training")
    if not found:
        return None
    moments = found["moments"]
    first, last = moments[0], moments[-1]
    about = (
        f"The model processes “{found['text']}” with the grey frames masked, and predicts the component of each from "
        f"the speech around it. Each row is a later checkpoint. Over {found['masked_frames']:,} masked frames of "
        f"{found['utterances']} utterances, the same for every checkpoint, it is right at {first['accuracy']:.1%} of "
        f"them after {first['step']:,} steps and at {last['accuracy']:.1%} at the end. Always predicting the most "
        f"frequent component would be right at {last['chance']:.1%}."
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
            rows.append(f'<tr class="truth"><th scope="row">Target, phase {phase}</th><td>{count}</td>{truth}</tr>')
        rows.append(row(moment, found["mask"]))
    caption = (
        "Numbers are components of the Gaussian mixture. A masked frame that is predicted correctly is blue with a "
        "tick. Visible frames are empty. Targets differ between phases, because phase 2 has its own mixture."
    )
    table = f'<table class="stretch"><caption class="unseen">{escape(about)}</caption>{"".join(rows)}</table>'
    content = f'<div class="wide" tabindex="0" role="region" aria-label="Masked prediction over training">{table}</div>'
    return SectionBody(about, f'{content}<p class="about">{prose(caption)}</p>')


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
