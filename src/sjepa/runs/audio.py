"""The audio that a run was trained on: run.json names what it has now, and what was replaced at which step."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sjepa.errors import UserError
from sjepa.fields import TABLE, TEXT, WHOLE, list_of, require

SINCE = "data_since"  # in run.json: the step from which on the run has its audio; absent for 0
EARLIER = "earlier_data"  # in run.json: the audio before, the oldest first; absent if it was never replaced
FIELDS = ("data", "corpus", SINCE, EARLIER)
"""Fields of run.json that say which audio a run has and had."""


class AudioSection(NamedTuple):
    """A part of a run with the same audio."""

    data: str
    """As it was named."""
    corpus: str
    """Its fingerprint."""
    since: int
    """The first step."""


def audio_sections(facts: Mapping[str, Any], before: int | None = None) -> list[AudioSection]:
    """The sections of a run, the oldest first, by the fields of its run.json.

    `before` is a step: sections that begin there or later are left out.
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
    """The fields of run.json for these sections."""
    *past, newest = sections
    facts: dict[str, Any] = {"data": newest.data, "corpus": newest.corpus}
    if newest.since:
        facts[SINCE] = newest.since
    if past:
        facts[EARLIER] = [section._asdict() for section in past]
    return facts


def replace_audio(facts: Mapping[str, Any], data: str, corpus: str, step: int) -> dict[str, Any]:
    """The fields of run.json for a run that has other audio from a step on; audio that no step has used is left out."""
    past = [section for section in audio_sections(facts) if section.since < step]
    return to_facts([*past, AudioSection(data, corpus, step)])
