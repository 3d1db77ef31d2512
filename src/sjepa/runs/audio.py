"""The audio of a run: run.json names the current audio, and the audio before each replacement."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sjepa.errors import UserError
from sjepa.fields import TABLE, TEXT, WHOLE, list_of, require

SINCE = "data_since"  # in run.json: the step at which the run got its current audio; absent for 0
EARLIER = "earlier_data"  # in run.json: earlier audio, the oldest first; absent if it was never replaced
FIELDS = ("data", "corpus", SINCE, EARLIER)
"""Fields of run.json about the current and the earlier audio."""


class AudioSection(NamedTuple):
    """A part of a run with the same audio."""

    data: str
    """The audio, as given on the command line."""
    corpus: str
    """Fingerprint of the audio."""
    since: int
    """The step at which the section starts."""


def audio_sections(facts: Mapping[str, Any], before: int | None = None) -> list[AudioSection]:
    """Return the sections of a run, the oldest first, from the fields of its run.json.

    With `before`, leave out sections that start at this step or later.
    """
    where = "run.json"
    past = require(facts, EARLIER, list_of(TABLE), where) if EARLIER in facts else []
    kinds = {"data": TEXT, "corpus": TEXT, "since": WHOLE}
    sections = [AudioSection(*(require(each, name, kind, where) for name, kind in kinds.items())) for each in past]
    since = require(facts, SINCE, WHOLE, where) if SINCE in facts else 0
    sections.append(AudioSection(str(facts.get("data", "")), str(facts.get("corpus", "")), since))
    if any(section.since >= following.since for section, following in pairwise(sections)):
        raise UserError(f"{where}: steps should rise in {EARLIER}, up to {SINCE}")
    return [section for section in sections if before is None or section.since < before] or sections[:1]


def to_facts(sections: list[AudioSection]) -> dict[str, Any]:
    """Return the fields of run.json for these sections."""
    *past, newest = sections
    facts: dict[str, Any] = {"data": newest.data, "corpus": newest.corpus}
    if newest.since:
        facts[SINCE] = newest.since
    if past:
        facts[EARLIER] = [section._asdict() for section in past]
    return facts


def replace_audio(facts: Mapping[str, Any], data: str, corpus: str, step: int) -> dict[str, Any]:
    """Return the fields of run.json for other audio from a step on. Audio that no step has used is left out."""
    past = [section for section in audio_sections(facts) if section.since < step]
    return to_facts([*past, AudioSection(data, corpus, step)])
