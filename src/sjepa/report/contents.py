"""The contents of a run folder for a page: settings, facts, events, results and analyses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjepa.analysis.style import findings_file, utterance_files
from sjepa.evaluate.results import find_results
from sjepa.files import read_json
from sjepa.report.demo_comparison import DemoComparison
from sjepa.runs.events import Event, audio_seconds, seconds_trained, select_events
from sjepa.runs.folder import RunFolder, planned_steps

ANALYSES = ("entropy", "erank", "pareto", "clusters", "over_training")


@dataclass(frozen=True)
class Report:
    """Everything that the sections of a page read."""

    title: str
    folder: Path
    events: list[Event]
    config: dict[str, Any]
    facts: dict[str, Any]
    comparison: DemoComparison
    """Empty unless the page is that of the demo."""
    results: list[dict[str, Any]]
    """Every results.json in the run folder and in the folders that the user named."""
    found: dict[str, dict[str, Any]]
    """Findings of `sjepa analyze` in RUN/analysis, by subject."""
    utterances: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The folder's name; `demo/run` is `demo`."""
        return RunFolder(self.folder).name

    @property
    def lines(self) -> list[Event]:
        return select_events(self.events, "train")

    @property
    def components(self) -> int | None:
        """K of the last phase."""
        begun = select_events(self.events, "phase")
        return begun[-1]["k"] if begun else None

    @property
    def chance(self) -> float | None:
        """Accuracy of always predicting the most frequent component if shares are logged; else of a uniform guess."""
        if not self.lines or not self.components:
            return None
        shares = [e["share"] for e in select_events(self.events, "clusters") if e["phase"] == self.lines[-1]["phase"]]
        return max(shares[-1]) if shares else 1 / self.components

    @property
    def hours(self) -> float | None:
        """Length of the corpus."""
        known = [event["hours"] for event in select_events(self.events, "data") if event.get("hours") is not None]
        return known[-1] if known else None

    @property
    def planned_steps(self) -> int:
        return planned_steps(self.config)

    @property
    def audio_seconds(self) -> float:
        return audio_seconds(self.events)

    @property
    def seconds_trained(self) -> float:
        return seconds_trained(self.events)


def read_report(
    run: Path, title: str = "", comparison: DemoComparison | None = None, more_results: tuple[Path, ...] = ()
) -> Report:
    folder = RunFolder(run)
    events, analysis = folder.events(), folder.analysis
    found = {name: read_json(path) for name in ANALYSES if (path := findings_file(analysis, name)).is_file()}
    utterances = [read_json(path) for path in utterance_files(analysis)]
    results = find_results([run, *more_results])
    # Plain settings, so that a page can show a run of another version too.
    compared = comparison or DemoComparison()
    return Report(title, run, events, folder.settings, folder.facts, compared, results, found, utterances)
