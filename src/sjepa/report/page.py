"""The page of a run: one HTML file that needs nothing else, made of sections from what the run directory holds."""

import json
import os
import re
import tomllib
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from sjepa.errors import UserError
from sjepa.report import charts
from sjepa.report.charts import Chart, Event


@dataclass(frozen=True)
class Report:
    """What sections draw on."""

    title: str
    events: list[Event]
    config: dict[str, Any]
    facts: dict[str, Any]
    comparison: dict[str, Any]

    @property
    def lines(self) -> list[Event]:
        return charts.of_kind(self.events, "train")

    @property
    def tasks(self) -> dict[str, dict[str, float]]:
        """Scores of every system, by task; the last system is the one the page is about."""
        return {task: scores for task, scores in self.comparison.items() if task not in ("about", "chance") and scores}


def write_page(
    run: Path, out: Path, comparison: dict[str, Any] | None = None, title: str = "S-JEPA pre-training"
) -> Path:
    """Write the page of a run directory; it can be opened, mailed and archived without a network."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError("the page needs plotly: pip install 'sjepa[demo]'") from error
    report = Report(title, read_events(run), read_config(run), read_facts(run), comparison or {})
    template = Template(resources.files("sjepa.report").joinpath("page.html").read_text("utf-8"))
    body = "\n".join(section(report) for section in (SECTIONS if report.lines else SECTIONS_BEFORE_TRAINING))
    html = template.substitute(title=escape(title), plotly=get_plotlyjs(), body=body)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(html, "utf-8")
    os.replace(partial, out)
    return out


def read_events(run: Path) -> list[Event]:
    """All events of metrics.jsonl; what is not a finite number is read as missing."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"{run} has no metrics.jsonl: give the directory of a run that has begun")
    whole, _, _ = path.read_text("utf-8").rpartition("\n")  # a run that is writing may have begun its next line
    events = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            events.append(json.loads(line, parse_constant=lambda _: None))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}") from error
    return events


def read_config(run: Path) -> dict[str, Any]:
    """The settings as plain tables, so that a run of another version can be shown as well."""
    path = run / "config.toml"
    try:
        return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def read_facts(run: Path) -> dict[str, Any]:
    path = run / "run.json"
    try:
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def header(report: Report) -> str:
    """What was run and what came of it, in words and in a few numbers."""
    sentences = [what_was_run(report), *what_was_learned(report)]
    ledes = "".join(f'<p class="lede">{sentence}</p>' for sentence in sentences)
    known = {"data": "data {}", "started": "started {}", "sjepa": "sjepa {}", "torch": "torch {}"}
    facts = " · ".join(escape(words.format(report.facts[key])) for key, words in known.items() if key in report.facts)
    return (
        f'<header><h1>{escape(report.title)}</h1>{ledes}<p class="meta">{facts}</p>'
        f'<dl class="cards">{"".join(headline_numbers(report))}</dl></header>'
    )


def what_was_run(report: Report) -> str:
    if not report.lines:
        return "This run has not logged a line yet."
    steps, planned = report.lines[-1]["step"], planned_steps(report)
    encoder, epochs = report.config.get("encoder", {}), report.lines[-1].get("epoch") or 0
    size = f" ({encoder['layers']} layers, width {encoder['hidden_size']})" if encoder else ""
    passes = f", {epochs:,} {'passes' if epochs > 1 else 'pass'} over its corpus," if epochs else ""
    return escape(
        f"An S-JEPA encoder{size} trained for {steps:,} {f'of {planned:,} ' if steps < planned else ''}steps and heard "
        f"{duration(audio_heard(report))} of audio{passes} in {duration(seconds_trained(report))}."
    )


def what_was_learned(report: Report) -> list[str]:
    parts = []
    for task, scores in report.tasks.items():
        *others, ours = scores
        beside = "; ".join(f"{name} {scores[name]:.1%}" for name in others)
        against = f" ({escape(beside)})" if others else ""
        parts.append(f"<b>{scores[ours]:.1%} {escape(task)} accuracy</b>{against}")
    return [f"Linear probes on its frozen features reach {' and '.join(parts)}."] if parts else []


def headline_numbers(report: Report) -> list[str]:
    cards = []
    for task, scores in report.tasks.items():
        names, level = list(scores), report.comparison.get("chance", {}).get(task)
        beside = [f"{names[0]} {scores[names[0]]:.1%}"] if len(names) > 1 else []
        beside += [f"chance {level:.1%}"] if level is not None else []
        cards.append(card(accuracy_of(task), f"{scores[names[-1]]:.1%}", ", ".join(beside), "result"))
    if report.lines:
        last, planned = report.lines[-1], planned_steps(report)
        parts = " + ".join(f"{end - start:,}" for _, start, end in charts.spans(report.events))
        done = f"of {planned:,} planned" if planned > last["step"] else f"{parts} by phase"
        cards.append(card("Steps", f"{last['step']:,}", done))
        pace = audio_heard(report) / max(seconds_trained(report), 1e-9)
        cards.append(card("Audio heard", duration(audio_heard(report)), f"at {pace:,.0f} times real time"))
        if last.get("accuracy_masked") is not None:
            k = charts.of_kind(report.events, "phase")[-1]["k"]
            among = f"phase {last['phase']}, K = {k:,}"
            cards.append(card("Masked accuracy", f"{last['accuracy_masked']:.1%}", among))
    return cards


def accuracy_of(task: str) -> str:
    return f"{task.capitalize()} accuracy"


def comparison(report: Report) -> str:
    about, levels = report.comparison.get("about", {}), report.comparison.get("chance", {})
    figures = "".join(
        figure(f"comparison-{index}", accuracy_of(task), charts.bars(scores, levels.get(task)), about.get(task, ""))
        for index, (task, scores) in enumerate(report.tasks.items())
    )
    return section(
        "What the features hold",
        "Linear probes on frozen features. The dotted line is chance: always giving the most frequent answer.",
        f'<div class="grid">{figures}</div>' if figures else note("No comparison was made for this run."),
    )


def learning(report: Report) -> str:
    kinds = "; ".join(
        f"in phase {phase['phase']} they come from {phase['targets']} with K = {phase['k']:,}"
        for phase in charts.of_kind(report.events, "phase")
    )
    loss = figure(
        "loss",
        "Loss",
        charts.loss(report.events),
        "Divergence of the prediction from the target; lower is better. The dotted curve is what is minimised: all "
        "frames while the visible loss is on, masked frames only once it has ended. The dashed level is what a network "
        "reaches that hears nothing and always predicts the average target.",
    )
    accuracy = figure(
        "accuracy",
        "Accuracy",
        charts.accuracy(report.events),
        "How often the predictor's best component is also the target's. Visible frames show what the encoder hears, "
        "masked frames what it infers from context.",
    )
    return section(
        "How it learned",
        f"The network predicts soft targets for every frame; {kinds}. Curves of different phases cannot be compared.",
        f'{loss}<div class="grid">{accuracy}{decay(report)}</div>',
    )


def decay(report: Report) -> str:
    title = "Target-encoder decay"
    levels = sorted({line["decay"] for line in report.lines if line.get("decay") is not None})
    if not levels:
        return f"<figure><h3>{title}</h3>{note('There is no target encoder yet: it begins with phase 2.')}</figure>"
    memory = " and ".join(f"{level:g} remembers about {1 / (1 - level):,.0f} steps" for level in levels if level < 1)
    return figure(
        "decay",
        title,
        charts.decay(report.events),
        f"How slowly the target encoder follows the encoder: {memory}. Low decays let the targets improve, high ones "
        "hold them still.",
    )


def layers(report: Report) -> str:
    title = "How rich every layer is"
    if not charts.of_kind(report.events, "layers"):
        return section(title, "", note("No effective rank is logged yet."))
    ranks = figure(
        "ranks",
        "Effective rank",
        charts.effective_ranks(report.events),
        "Dots are measurements, lines their running mean; dark layers are near the audio. The strip names the active "
        "layer: pale while it is only watched, in full colour where the targets are made from it.",
    )
    return section(title, "Effective rank counts the directions that a layer's features really use.", ranks)


def targets(report: Report) -> str:
    entropy = figure(
        "entropy",
        "Entropy",
        charts.entropy(report.events),
        "Uncertainty per frame; the predictor's, at masked frames, falls towards the targets' as it learns. The dotted "
        "level is a guess among all components alike.",
    )
    components = figure(
        "components",
        "Components",
        charts.components(report.events),
        "Perplexity of the mean posterior: near K when all components share the frames, near 1 when targets collapse. "
        "A dead component gets less than a hundredth of an even share.",
    )
    return section(
        "What was predicted",
        "Targets should be sharp on every frame and yet use all components over the corpus.",
        f'<div class="grid">{entropy}{components}</div>',
    )


def machinery(report: Report) -> str:
    clip = report.config.get("train", {}).get("clip")
    kinds = (
        ("gradient_norm", "Gradient norm", ".3f", "~g", f"Before clipping at {clip}." if clip else "Before clipping."),
        ("lr", "Learning rate", ".2~e", "", "Warm-up, then the phase's schedule."),
        ("audio_per_second", "Speed", ",.0f", "~s", "Seconds of audio per second of training."),
        ("waiting", "Waiting for data", ".1%", "~%", "Share of the time; near 0 when reading keeps up."),
    )
    figures = "".join(
        figure(key, name, charts.small(report.events, key, form, ticks), text) for key, name, form, ticks, text in kinds
    )
    return section("How it ran", "", f'<div class="grid four">{figures}</div>')


def alarms(report: Report) -> str:
    """Alarms of one kind, which differ in their numbers only, are told once."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for line in report.lines:
        for text in line.get("alarms") or []:
            kinds.setdefault(re.sub(r"\d[\d.,]*", "#", text), []).append((line["step"], text))
    items = ""
    for (first, text), *more in kinds.values():
        when = f"Step {first:,}"
        if more:
            last, text = more[-1]
            when = f"{1 + len(more)} times, steps {first:,} to {last:,}. The last:"
        items += f"<li><b>{when}</b>{escape(text)}</li>"
    nothing = note("None: nothing looked wrong while it ran.")
    return section("Alarms", "", f'<ul class="alarms">{items}</ul>' if items else nothing)


def details(report: Report) -> str:
    """Everything needed to run it again, folded away."""
    top = {key: value for key, value in report.config.items() if not isinstance(value, dict)}
    groups = {"run": top} | {key: value for key, value in report.config.items() if isinstance(value, dict)}
    settings = "".join(table(values, name) for name, values in groups.items() if values)
    facts = table(report.facts) if report.facts else note("This run directory has no run.json.")
    return section(
        "Details",
        "",
        f"<details><summary>The run</summary>{facts}</details><details><summary>Settings</summary>"
        f'<div class="settings">{settings or note("This run directory has no config.toml.")}</div></details>',
    )


SECTIONS = (header, comparison, learning, layers, targets, machinery, alarms, details)
SECTIONS_BEFORE_TRAINING = (header, comparison, details)


def section(title: str, about: str, content: str) -> str:
    words = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{words}{content}</section>"


def figure(name: str, title: str, chart: Chart, caption: str) -> str:
    """A chart with its caption; the page's script draws it from the JSON beside it."""
    spec = json.dumps(chart, allow_nan=False).replace("<", "\\u003c")  # no text in it can end the script element
    return (
        f'<figure><h3>{escape(title)}</h3><div id="{name}" class="chart" role="img" aria-label="{escape(title)}"></div>'
        f'<script type="application/json" data-chart="{name}">{spec}</script>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def card(label: str, value: str, beside: str, kind: str = "plain") -> str:
    """A number with its name above and a remark below."""
    words = f"<dt>{escape(label)}</dt><dd>{escape(value)}<small>{escape(beside)}</small></dd>"
    return f'<div class="{kind}">{words}</div>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def table(values: dict[str, Any], name: str = "") -> str:
    rows = "".join(
        f"<tr><th>{escape(str(key))}</th><td>{escape(str(value))}</td></tr>" for key, value in values.items()
    )
    return f"<table>{f'<caption>{escape(name)}</caption>' if name else ''}{rows}</table>"


def planned_steps(report: Report) -> int:
    return sum(report.config.get(phase, {}).get("steps", 0) for phase in ("phase1", "phase2"))


def audio_heard(report: Report) -> float:
    """Seconds of audio, as the logged lines tell it."""
    return sum(line["speed"]["audio_per_second"] * line["speed"]["seconds"] for line in report.lines if "speed" in line)


def seconds_trained(report: Report) -> float:
    return sum(line["speed"]["seconds"] for line in report.lines if "speed" in line)


def duration(seconds: float) -> str:
    """A duration for people: seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"
