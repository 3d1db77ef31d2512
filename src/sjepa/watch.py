"""A live view of a run in the terminal, from its log. The settings add the number of planned steps."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sjepa.durations import SHORT, format_duration
from sjepa.errors import UserError
from sjepa.fields import refuse_surprises
from sjepa.runs.alarms import read_alarms
from sjepa.runs.events import Event, find_metric, last_step, parse_event, select_events
from sjepa.runs.folder import RunFolder

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40
# Rows of the view: key in the log, name, format.
ROWS = (
    ("loss", "loss", "{:.3f}"),
    ("kl_masked", "KL, masked", "{:.3f}"),
    ("kl_visible", "KL, visible", "{:.3f}"),
    ("accuracy_masked", "accuracy, masked", "{:.1%}"),
    ("accuracy_visible", "accuracy, visible", "{:.1%}"),
    ("target_entropy", "entropy of targets", "{:.2f} bits"),
    ("predictor_entropy", "entropy of predictor", "{:.2f} bits"),
    ("target_perplexity", "components in use", "{:.1f}"),
    ("dead_components", "dead components", "{:d}"),
    ("gradient_norm", "gradient norm", "{:.2f}"),
    ("lr", "learning rate", "{:.1e}"),
    ("audio_per_second", "audio per second", "{:,.0f} s"),
    ("waiting", "waiting for data", "{:.1%}"),
)
HELD_OUT_ROWS = (
    ("accuracy_training", "masked, training audio", "{:.1%}"),
    ("accuracy_held_out", "masked, held-out audio", "{:.1%}"),
)


class Tail:
    """The events of a growing log. If a continued run cuts the log back, the log is read again."""

    def __init__(self, path: Path):
        self.path = path
        self.forget()

    def forget(self) -> None:
        self.events: list[Event] = []
        self.place, self.last = 0, b""

    def read(self) -> list[Event]:
        """Return the events of all complete lines so far."""
        if not self.path.is_file():
            self.forget()
            return self.events
        with self.path.open("rb") as file:
            file.seek(max(0, self.place - len(self.last)))
            if file.read(len(self.last)) != self.last:  # the log was cut back, and perhaps overwritten
                self.forget()
                file.seek(0)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            lines = whole.split(b"\n")
            decoded = [line.decode(errors="replace") for line in lines if line.strip()]
            self.events += [parse_event(line, str(self.path)) for line in decoded]
            self.place += len(whole) + 1
            self.last = lines[-1] + b"\n"
        return self.events


def watch(run: Path, every: float, once: bool) -> None:
    """Show a run until it is complete or the user presses Ctrl-C. With `once`, show its current state only."""
    from rich.console import Console
    from rich.live import Live

    folder = RunFolder(run)
    if run.is_dir() and not folder.log.is_file() and not folder.is_unstarted:
        folder.require()  # no run can start in a folder with other files
    console, tail, total = Console(), Tail(folder.log), planned_steps(run)
    if once or not console.is_terminal:
        if not run.is_dir():
            raise UserError(f"there is no run {run}")
        console.print(view(run, tail.read(), total, file_age(tail.path)))
        return
    with suppress(KeyboardInterrupt):
        wait_for(run, every)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not (total and tail.events and last_step(tail.events) >= total):
                total = total or planned_steps(run)
                live.update(view(run, tail.read(), total, file_age(tail.path)), refresh=True)
                time.sleep(every)
    console.print(view(run, tail.events, total, file_age(tail.path)))


def wait_for(run: Path, every: float) -> None:
    """Wait until the folder exists. Print a message if it does not, because its name may be mistyped."""
    if not run.is_dir():
        print(f"There is no {run} yet: waiting for it; Ctrl-C stops waiting", flush=True)
    while not run.is_dir():
        time.sleep(every)


def planned_steps(run: Path) -> int:
    """Return the steps of all phases, or 0 if they are not known or not readable. The view works without them."""
    try:
        return RunFolder(run).planned_steps
    except (OSError, UserError):
        return 0


def file_age(path: Path) -> float:
    """Return the seconds since the last write to a file."""
    return time.time() - path.stat().st_mtime if path.is_file() else 0.0


def view(run: Path, events: Sequence[Event], total: int, age: float) -> Any:
    """Return the view, for `rich`. Raise UserError if the log has unexpected contents."""
    with refuse_surprises(RunFolder(run).log):
        return draw(run, events, total, age)


def draw(run: Path, events: Sequence[Event], total: int, age: float) -> Any:
    """Draw the view from the events of the log."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    lines = select_events(events, "train")
    if not events:
        return Panel(Text(f"{run}: {describe_waiting(RunFolder(run))}"))
    stopped = events[-1]["step"] if events[-1]["event"] == "stopped" else None
    if not lines:
        begun = select_events(events, "phase")
        state = "its targets are fitted, the first line follows" if begun else "nothing is logged yet"
        if stopped is not None:
            state = f"stopped at step {stopped:,}; `sjepa pretrain --out {run}` continues it"
        return Panel(Text(f"{run}: {state}; {format_age(age)}"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="cyan", no_wrap=True)
    in_phase = [event for event in events if event.get("phase") == lines[-1]["phase"]]
    for kind, rows in (("train", ROWS), ("held_out", HELD_OUT_ROWS)):
        for key, name, form in rows:
            values = [find_metric(line, key) for line in select_events(in_phase, kind)]
            if values and values[-1] is not None:
                grid.add_row(name, form.format(values[-1]), sparkline(values))
    parts: list[Any] = [Text(progress(lines, total, age, stopped)), Text(), grid]
    checks = select_events(events, "layers")
    if checks:
        parts += [Text(), Text("effective rank (smoothed; * is active)", style="dim"), draw_effective_ranks(checks[-1])]
    recent = {alarm["code"]: (line["step"], alarm["message"]) for line in lines[-20:] for alarm in read_alarms(line)}
    if recent:
        parts += [Text(), Text("alarms", style="bold red")]
        parts += [Text(f"step {step:,}: {text}", style="red") for step, text in recent.values()]
    return Panel(Group(*parts), title=Text(str(run)), title_align="left", border_style="dim")


def describe_waiting(run: RunFolder) -> str:
    """Describe what the view of a run without a log waits for."""
    if run.exists:
        return f"the run has started; waiting for {run.log.name}"
    return f"not a run yet; waiting for `sjepa pretrain --out {run}` to start it"


def progress(lines: Sequence[Event], total: int, age: float, stopped: int | None = None) -> str:
    """Format step, phase and time left in one line. `stopped` is the step at which the run stopped on request."""
    last = lines[-1]
    step = last["step"] if stopped is None else stopped
    phase = f"phase {last['phase']}, pass {(last.get('epoch') or 0) + 1} over the corpus"
    if not total:
        return f"step {step:,}, {phase}; {format_age(age)}"
    done = step / total
    filled = round(min(done, 1.0) * WIDTH)
    bar = "━" * filled + "╌" * (WIDTH - filled)
    if done >= 1:
        return f"{bar} step {step:,}: complete"
    if stopped is not None:
        return f"{bar} step {step:,} of {total:,} ({done:.0%}), {phase}; stopped, the same command continues"
    # Use the speed of the last lines, because it differs between phases.
    recent = [line for line in lines[-10:] if line["phase"] == last["phase"]]
    interval = recent[-1]["step"] - recent[0]["step"]
    seconds = sum(find_metric(line, "seconds") or 0.0 for line in recent[1:])
    left = "time left not known yet"
    if interval:
        left = f"about {format_duration(seconds / interval * (total - last['step']), SHORT)} left"
    usual = seconds / max(1, len(recent) - 1)
    quiet = "; has it stopped?" if usual and age > 60 + 10 * usual else ""
    return f"{bar} step {last['step']:,} of {total:,} ({done:.0%}), {phase}; {left}; {format_age(age)}{quiet}"


def format_age(age: float) -> str:
    return f"last line {format_duration(age, SHORT)} ago"


def sparkline(values: Sequence[float | None]) -> str:
    """Draw values as bars of eight heights. Many values are averaged per bar; a missing value is a gap."""
    per = -(-len(values) // WIDTH)
    pieces = [[v for v in values[i : i + per] if v is not None] for i in range(0, len(values), per)]
    means = [sum(piece) / len(piece) if piece else None for piece in pieces]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if m is None else BLOCKS[min(7, int((m - low) / span * 8))] for m in means)


def draw_effective_ranks(check: Event) -> Any:
    """Draw one bar per layer."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    most = max(check["smoothed"], default=0.0)
    for layer, rank in enumerate(check["smoothed"]):
        mark = "*" if layer == check.get("active_layer") else " "
        grid.add_row(f"{mark} layer {layer}", f"{rank:.1f}", "█" * round(WIDTH * rank / max(most, 1e-9)))
    return grid
