"""Sections of a page about the training: from metrics.jsonl, config.toml and run.json."""

from html import escape

from sjepa.durations import AUDIO, format_duration
from sjepa.report import charts
from sjepa.report.blocks import SectionBody, card, figure, folded, note, pairs, prose
from sjepa.report.contents import Report
from sjepa.runs.alarms import read_alarms
from sjepa.runs.events import phase_spans, select_events


def header(report: Report) -> str:
    """What was run and what it reached, in words and in a few numbers."""
    introduction = [prose(sentence) for sentence in report.comparison.introduction]
    sentences = [*introduction, describe_run(report), *describe_gains(report), *describe_limits(report)]
    ledes = "".join(f'<p class="lede">{sentence}</p>' for sentence in sentences)
    known = {"data": "data {}", "started": "started {}", "sjepa": "sjepa {}", "torch": "torch {}"}
    facts = " · ".join(escape(words.format(report.facts[key])) for key, words in known.items() if key in report.facts)
    return (
        f'<header><h1>{escape(report.title)}</h1>{ledes}<p class="meta">{facts}</p>'
        f'<dl class="cards">{"".join(headline_numbers(report))}</dl>{meanings(report)}</header>'
    )


def meanings(report: Report) -> str:
    """What each headline number means, if the page has an explanation."""
    items = "".join(f"<li>{prose(text)}</li>" for text in report.comparison.meaning)
    return f'<ul class="meaning">{items}</ul>' if items else ""


def next_steps(report: Report) -> SectionBody | None:
    """Commands to run next, if the page has any."""
    rows = "".join(
        f"<dt>{escape(what)}</dt><dd><code>{escape(command)}</code></dd>"
        for what, command in report.comparison.next_steps.items()
    )
    return SectionBody("", f'<dl class="commands">{rows}</dl>') if rows else None


def describe_run(report: Report) -> str:
    if not report.lines:
        return "This run has not logged a line yet."
    steps, planned = report.lines[-1]["step"], report.planned_steps
    encoder, audio, hours = report.config.get("encoder", {}), report.audio_seconds, report.hours
    size = f" ({encoder['layers']} layers, width {encoder['hidden_size']})" if encoder else ""
    # Not in epochs: an epoch uses one crop of each utterance, which is less than the corpus.
    corpus = format_duration(3600 * hours, AUDIO) if hours else ""
    share = f", {audio / (3600 * hours):,.1f} times its corpus of {corpus}" if hours else ""
    return escape(
        f"An S-JEPA encoder{size} trained for {steps:,} {f'of {planned:,} ' if steps < planned else ''}steps in "
        f"{format_duration(report.seconds_trained)}. It processed {format_duration(audio, AUDIO)} of audio{share}."
    )


def describe_gains(report: Report) -> list[str]:
    parts = []
    for task in report.comparison.tasks:
        remark = "; ".join(f"{other.name} {other.accuracy:.1%}" for other in task.others)
        against = f" ({escape(remark)})" if remark else ""
        parts.append(f"<b>{task.ours.accuracy:.1%} {escape(task.name)} accuracy</b>{against}")
    return [f"Linear probes on its frozen features reach {' and '.join(parts)}."] if parts else []


def describe_limits(report: Report) -> list[str]:
    """A warning if masked frames are predicted no better than by the average target."""
    last = (report.lines or [{}])[-1]
    if not charts.is_at_average(last, "kl_masked"):
        return []
    average = charts.average_loss(last)
    ends = {line["phase"]: line for line in report.lines}.values()
    never = all(charts.is_at_average(line, "kl_masked") for line in ends)
    visible = never and not charts.is_at_average(last, "kl_visible")
    elsewhere = ": the encoder learned from visible frames" if visible else ""
    return [
        f"<b>At masked frames it does not yet predict better than the average target</b> (masked KL "
        f"{last['kl_masked']:.2f} nats, average target {average:.2f} nats){elsewhere}."
    ]


def headline_numbers(report: Report) -> list[str]:
    cards = []
    for task in report.comparison.tasks:
        remark = [f"{other.name} {other.accuracy:.1%}" for other in task.others[:1]]
        remark.append(f"chance {task.chance:.1%}")
        cards.append(card(accuracy_title(task.name), f"{task.ours.accuracy:.1%}", ", ".join(remark), "result"))
    if report.lines:
        last, planned = report.lines[-1], report.planned_steps
        parts = " + ".join(f"{end - start:,}" for _, start, end in phase_spans(report.events))
        done = f"of {planned:,} planned" if planned > last["step"] else f"{parts} by phase"
        cards.append(card("Steps", f"{last['step']:,}", done))
        pace = report.audio_seconds / max(report.seconds_trained, 1e-9)
        cards.append(
            card("Audio processed", format_duration(report.audio_seconds, AUDIO), f"at {pace:,.0f} times real time")
        )
        if last.get("accuracy_masked") is not None:
            among = f"phase {last['phase']}"
            if report.components and report.chance is not None:
                among += f", K = {report.components:,}, chance {report.chance:.1%}"
            if report.chance:
                among += f", {last['accuracy_masked'] / report.chance:.1f} times chance"
            cards.append(card("Masked accuracy", f"{last['accuracy_masked']:.1%}", among))
    return cards


def accuracy_title(task: str) -> str:
    return f"{task.capitalize()} accuracy"


def learning_curves(report: Report) -> SectionBody:
    kinds = "; ".join(
        f"in phase {phase['phase']} they are {phase['targets']} with K = {phase['k']:,}"
        for phase in select_events(report.events, "phase")
    )
    both = charts.has_encoder_loss(report.events)
    encoders = " The loss also includes the encoder's own prediction at masked frames." if both else ""
    loss = figure(
        "loss",
        "Loss",
        charts.loss(report.events),
        "KL divergence from target to prediction; lower is better. The dotted curve is the training loss: all frames "
        f"while the visible loss is on, masked frames only after it ends.{encoders} The dashed line is the loss of "
        "always predicting the average target.",
    )
    accuracy = figure(
        "accuracy",
        "Accuracy",
        charts.accuracy(report.events),
        "How often the most likely component of prediction and target agree. At visible frames the encoder sees the "
        f"frame; at masked frames it infers it from context.{describe_chance(report)}",
    )
    return SectionBody(
        f"The network predicts a target at every frame; {kinds}. Do not compare curves of different phases.",
        f'{loss}<div class="grid">{accuracy}{decay(report)}</div>{held_out(report)}',
    )


def held_out(report: Report) -> str:
    if not select_events(report.events, "held_out"):
        return ""
    return figure(
        "held_out",
        "Masked accuracy on held-out audio",
        charts.held_out(report.events),
        "Measured on fixed crops with fixed masks, without dropout and augmentation. If only the accuracy on training "
        "audio rises, the encoder memorises its corpus.",
    )


def describe_chance(report: Report) -> str:
    if report.chance is None:
        return ""
    return f" Chance in phase {report.lines[-1]['phase']}, the most frequent component, is {report.chance:.1%}."


def decay(report: Report) -> str:
    title = "Target-encoder decay"
    levels = sorted({line["decay"] for line in report.lines if line.get("decay") is not None})
    if not levels:
        steps = report.lines[-1]["step"] if report.lines else 0
        when = "" if 0 < report.planned_steps <= steps else " yet"
        return f"<figure><h3>{title}</h3>{note(f'There is no target encoder{when}.')}</figure>"
    memory = " and ".join(f"{level:g} averages about {1 / (1 - level):,.0f} steps" for level in levels if level < 1)
    return figure(
        "decay",
        title,
        charts.decay(report.events),
        f"How slowly the target encoder follows the encoder: {memory}. A low decay lets the targets improve, a high "
        "decay keeps them stable.",
    )


def targets(report: Report) -> SectionBody:
    entropy = figure(
        "entropy",
        "Entropy over training",
        charts.entropy(report.events),
        "Uncertainty per frame; for the predictor, at masked frames. The dotted line is a uniform guess among all "
        "components. The less the predictor infers from context, the closer it stays to that line.",
    )
    components = figure(
        "components",
        "Components in use",
        charts.components(report.events),
        "Perplexity of the mean posterior: near K if all components are used equally, near 1 if targets collapse. A "
        "component is dead below a hundredth of an even share.",
    )
    return SectionBody(
        "Good targets are sharp at every frame and use all components over the corpus.",
        f'<div class="grid">{entropy}{components}</div>',
    )


def machinery(report: Report) -> SectionBody:
    clip = report.config.get("train", {}).get("clip")
    kinds = (
        ("gradient_norm", "Gradient norm", ".3f", "~g", f"Before clipping at {clip}." if clip else "Before clipping."),
        ("lr", "Learning rate", ".2~e", "", "Warm-up, then the schedule of the phase."),
        ("audio_per_second", "Speed", ",.0f", "~s", "Seconds of audio per second of training."),
        ("waiting", "Waiting for data", ".1%", "~%", "Share of the time; near 0 if the data loader keeps up."),
    )
    figures = "".join(
        figure(key, name, charts.small_chart(report.events, key, form, ticks), text)
        for key, name, form, ticks, text in kinds
    )
    return SectionBody("", f'<div class="grid four">{figures}</div>{alarms(report)}')


def alarms(report: Report) -> str:
    """One item per alarm code, with its last message."""
    codes: dict[str, list[tuple[int, str]]] = {}
    for line in report.lines:
        for alarm in read_alarms(line):
            codes.setdefault(alarm["code"], []).append((line["step"], alarm["message"]))
    items = ""
    for (first, text), *more in codes.values():
        when = f"Step {first:,}"
        if more:
            last, text = more[-1]
            when = f"{1 + len(more)} times, steps {first:,} to {last:,}. The last:"
        items += f"<li><b>{when}</b>{prose(text)}</li>"
    remark = ", but masked frames are predicted no better than by the average" if describe_limits(report) else ""
    nothing = note(f"The run raised no alarm{remark}.")
    return f'<h3 class="later">Alarms</h3><ul class="alarms">{items}</ul>' if items else nothing


def details(report: Report) -> SectionBody:
    """Everything needed to repeat the run, collapsed."""
    top = {key: value for key, value in report.config.items() if not isinstance(value, dict)}
    groups = {"run": top} | {key: value for key, value in report.config.items() if isinstance(value, dict)}
    settings = "".join(pairs(values, name) for name, values in groups.items() if values)
    facts = pairs(report.facts) if report.facts else note("This run folder has no run.json.")
    return SectionBody(
        "",
        folded("The run", facts)
        + folded("Settings", f'<div class="settings">{settings or note("This run folder has no config.toml.")}</div>'),
    )
