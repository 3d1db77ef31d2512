"""Facts about an encoder's training, read from its run or from an exported folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sjepa.config import Config
from sjepa.errors import UserError
from sjepa.fields import TABLE, TEXT, WHOLE, list_of, require
from sjepa.files import read_json, write_whole
from sjepa.model.encoder_folder import EncoderFolder
from sjepa.runs.audio import FIELDS, AudioSection, audio_sections
from sjepa.runs.events import select_events
from sjepa.runs.folder import INITIAL_LICENCE, RunFolder
from sjepa.runs.locate import find_run
from sjepa.settings_file import from_complete_toml, to_toml

FACTS_FILE = "training.json"
KEPT = (*FIELDS, "sjepa", "torch", "started", "world_size", INITIAL_LICENCE)


@dataclass(frozen=True)
class TrainingFacts:
    """What a run folder records about its training."""

    config: Config
    run: Mapping[str, Any]
    """run.json: data and versions."""
    data: Sequence[Mapping[str, Any]]
    """Steps at which the run got audio, each with utterances and hours, from the log."""
    step: int
    """Step of the checkpoint that the encoder belongs to; the last logged step if no checkpoint was kept."""
    components: Mapping[int, int]
    """Components of each phase's targets."""

    @property
    def audio(self) -> list[tuple[AudioSection, Mapping[str, Any]]]:
        """What the encoder was trained on until its step, each with its event of the log, if there is one.

        A run that is continued on other audio has several sections.
        """
        logged = {event.get("step", 0): event for event in self.data}
        return [(each, logged.get(each.since, {})) for each in audio_sections(self.run, before=self.step)]

    @property
    def initial_licence(self) -> str:
        """Licence of the encoder that training started from. Empty if it is not known."""
        return str(self.run.get(INITIAL_LICENCE, ""))

    def until(self, phase: int, step: int) -> "TrainingFacts":
        """Return the facts of an encoder that a step of this phase left."""
        reached = {number: count for number, count in self.components.items() if number <= phase}
        return replace(self, step=step, components=reached)

    def save(self, folder: Path) -> None:
        """Save the facts with an exported encoder, so that it can be exported again."""
        content = {
            "config": to_toml(self.config),
            "run": dict(self.run),
            "data": [dict(event) for event in self.data],
            "step": self.step,
            "components": {str(phase): count for phase, count in self.components.items()},
        }
        write_whole(folder / FACTS_FILE, json.dumps(content, indent=1) + "\n")


def read_facts(source: Path) -> TrainingFacts | None:
    """Read the facts of a run or of an encoder folder. None if a folder has no record of its training.

    Refuse anything that is neither a run nor an encoder.
    """
    run = find_run(source)
    if run is None and EncoderFolder(source).exists:
        return read_exported_facts(source / FACTS_FILE) if (source / FACTS_FILE).is_file() else None
    if source.is_file():
        return None
    run = run or RunFolder(source)
    run.require(run.facts_file, run.log, EncoderFolder(run.encoder).weights)
    events = run.events()
    data = select_events(events, "data")
    components = {event["phase"]: event["k"] for event in select_events(events, "phase")}
    facts = {key: value for key, value in run.facts.items() if key in KEPT}
    return TrainingFacts(run.config(), facts, data, run.step, components)


def read_exported_facts(file: Path) -> TrainingFacts:
    found, where = read_json(file), str(file)
    config = from_complete_toml(require(found, "config", TEXT, where), where)
    run, components = (require(found, name, TABLE, where) for name in ("run", "components"))
    data = require(found, "data", list_of(TABLE), where)
    try:
        counts = {int(phase): int(count) for phase, count in components.items()}
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: components should be numbers by phase ({error})") from error
    return TrainingFacts(config, run, data, require(found, "step", WHOLE, where), counts)
