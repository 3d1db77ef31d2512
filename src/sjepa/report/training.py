"""Sections of a page that tell of the training: from metrics.jsonl, config.toml and run.json."""

from html import escape

from sjepa.report import charts
from sjepa.report.blocks import card, duration, figure, note, pairs, section
from sjepa.report.contents import Report
from sjepa.runs.alarms import read_alarms
from sjepa.runs.events import phase_spans, select_events


def header(report: Report) -> str:
    """What was run and what came of it, in words and in a few numbers."""
    introduction = [escape(sentence) for sentence in report.comparison.get("introduction", [])]
    sentences = [*introduction, describe_run(report), *describe_gains(report), *describe_limits(report)]
    ledes = "".join(f'<p class="lede">{sentence}</p>' for sentence in sentences)
    known = {"data": "data {}", "started": "started {}", "sjepa": "sjepa {}", "torch": "torch {}"}
    facts = " · ".join(escape(words.format(report.facts[key])) for key, words in known.items() if key in report.facts)
    return (
        f'<header><h1>{escape(report.title)}</h1>{ledes}<p class="meta">{facts}</p>'
        f'<dl class="cards">{"".join(headline_numbers(report))}</dl>{meanings(report)}</header>'
    )


def meanings(report: Report) -> str:
    """What each headline number says, where the page came with an explanation."""
    items = "".join(f"<li>{escape(text)}</li>" for text in report.comparison.get("meaning", []))
    return f'<ul class="meaning">{items}</ul>' if items else ""


def next_steps(report: Report) -> str:
    """Commands to run next, where the page came with them."""
    rows = "".join(
        f"<dt>{escape(what)}</dt><dd><code>{escape(command)}</code></dd>"
        for what, command in report.comparison.get("next", {}).items()
    )
    return section("next", "What to run next", "", f'<dl class="commands">{rows}</dl>') if rows else ""


def describe_run(report: Report) -> str:
    if not report.lines:
        return "This run has not logged a line yet."
    steps, planned = report.lines[-1]["step"], report.planned_steps
    encoder, epochs = report.config.get("encoder", {}), report.lines[-1].get("epoch") or 0
    size = f" ({encoder['layers']} layers, width {encoder['hidden_size']})" if encoder else ""
    passes = f", {epochs:,} {'passes' if epochs > 1 else 'pass'} over its corpus," if epochs else ""
    return escape(
        f"An S-JEPA encoder{size} trained for {steps:,} {f'of {planned:,} ' if steps < planned else ''}steps on "
        f"{duration(report.audio_seconds)} of audio{passes} in {duration(report.seconds_trained)}."
    )


def describe_gains(report: Report) -> list[str]:
    parts = []
    for task, scores in report.tasks.items():
        *others, ours = scores
        beside = "; ".join(f"{name} {scores[name]:.1%}" for name in others)
        against = f" ({escape(beside)})" if others else ""
        parts.append(f"<b>{scores[ours]:.1%} {escape(task)} accuracy</b>{against}")
    return [f"Linear probes on its frozen features reach {' and '.join(parts)}."] if parts else []


def describe_limits(report: Report) -> list[str]:
    """Said where masked frames are predicted no better than by a network that hears nothing."""
    last = (report.lines or [{}])[-1]
    if not charts.is_at_average(last, "kl_masked"):
        return []
    average = charts.average_loss(last)
    ends = {line["phase"]: line for line in report.lines}.values()
    never = all(charts.is_at_average(line, "kl_masked") for line in ends)
    visible = never and not charts.is_at_average(last, "kl_visible")
    elsewhere = ": what was learned comes from visible frames" if visible else ""
    return [
        f"<b>At masked frames it predicts no better than the average so far</b> (masked KL {last['kl_masked']:.2f}, "
        f"always the average {average:.2f} nats){elsewhere}."
    ]


def headline_numbers(report: Report) -> list[str]:
    cards = []
    for task, scores in report.tasks.items():
        names, level = list(scores), report.comparison.get("chance", {}).get(task)
        beside = [f"{names[0]} {scores[names[0]]:.1%}"] if len(names) > 1 else []
        beside += [f"chance {level:.1%}"] if level is not None else []
        cards.append(card(accuracy_of(task), f"{scores[names[-1]]:.1%}", ", ".join(beside), "result"))
    if report.lines:
        last, planned = report.lines[-1], report.planned_steps
        parts = " + ".join(f"{end - start:,}" for _, start, end in phase_spans(report.events))
        done = f"of {planned:,} planned" if planned > last["step"] else f"{parts} by phase"
        cards.append(card("Steps", f"{last['step']:,}", done))
        pace = report.audio_seconds / max(report.seconds_trained, 1e-9)
        cards.append(card("Audio processed", duration(report.audio_seconds), f"at {pace:,.0f} times real time"))
        if last.get("accuracy_masked") is not None:
            among = f"phase {last['phase']}"
            if report.components and report.chance is not None:
                among += f", K = {report.components:,}, chance {report.chance:.1%}"
            if report.chance:
                among += f", {last['accuracy_masked'] / report.chance:.1f} times chance"
            cards.append(card("Masked accuracy", f"{last['accuracy_masked']:.1%}", among))
    return cards


def accuracy_of(task: str) -> str:
    return f"{task.capitalize()} accuracy"


def learning_curves(report: Report) -> str:
    kinds = "; ".join(
        f"in phase {phase['phase']} they come from {phase['targets']} with K = {phase['k']:,}"
        for phase in select_events(report.events, "phase")
    )
    both = charts.has_encoder_loss(report.events)
    encoders = " To it is added what the encoder itself says at masked frames." if both else ""
    loss = figure(
        "loss",
        "Loss",
        charts.loss(report.events),
        "Divergence of the prediction from the target; lower is better. The dotted curve is what is minimised: all "
        f"frames while the visible loss is on, masked frames only once it has ended.{encoders} The dashed level is "
        "what a network reaches at either kind of frame that hears nothing and always predicts the average target.",
    )
    accuracy = figure(
        "accuracy",
        "Accuracy",
        charts.accuracy(report.events),
        "How often the predictor's best component is also the target's. Visible frames show what the encoder hears, "
        f"masked frames what it infers from context.{describe_chance(report)}",
    )
    return section(
        "learning",
        "How it learned",
        f"The network predicts soft targets for every frame; {kinds}. Curves of different phases cannot be compared.",
        f'{loss}<div class="grid">{accuracy}{decay(report)}</div>',
    )


def describe_chance(report: Report) -> str:
    if report.chance is None:
        return ""
    return f" In phase {report.lines[-1]['phase']} chance, always the fullest component, is {report.chance:.1%}."


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


def targets(report: Report) -> str:
    entropy = figure(
        "entropy",
        "Entropy over training",
        charts.entropy(report.events),
        "Uncertainty per frame, the predictor's at masked frames: the less it infers from context, the nearer it stays "
        "to the dotted level, a guess among all components alike.",
    )
    components = figure(
        "components",
        "Components in use",
        charts.components(report.events),
        "Perplexity of the mean posterior: near K when all components share the frames, near 1 when targets collapse. "
        "A dead component gets less than a hundredth of an even share.",
    )
    return section(
        "targets",
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
        figure(key, name, charts.small_chart(report.events, key, form, ticks), text)
        for key, name, form, ticks, text in kinds
    )
    return section("machinery", "How it ran", "", f'<div class="grid four">{figures}</div>{alarms(report)}')


def alarms(report: Report) -> str:
    """One item per code of alarm, with the message of the last."""
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
        items += f"<li><b>{when}</b>{escape(text)}</li>"
    beside = ", but masked frames are predicted no better than by the average" if describe_limits(report) else ""
    nothing = note(f"No alarm was raised while it ran{beside}.")
    return f'<h3 class="later">Alarms</h3><ul class="alarms">{items}</ul>' if items else nothing


def details(report: Report) -> str:
    """Everything needed to run it again, folded away."""
    top = {key: value for key, value in report.config.items() if not isinstance(value, dict)}
    groups = {"run": top} | {key: value for key, value in report.config.items() if isinstance(value, dict)}
    settings = "".join(pairs(values, name) for name, values in groups.items() if values)
    facts = pairs(report.facts) if report.facts else note("This run directory has no run.json.")
    return section(
        "details",
        "Details",
        "",
        f"<details><summary>The run</summary>{facts}</details><details><summary>Settings</summary>"
        f'<div class="settings">{settings or note("This run directory has no config.toml.")}</div></details>',
    )
