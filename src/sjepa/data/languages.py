"""The language of an utterance, by the columns in which lists name it, and a choice of languages."""

import json
from collections.abc import Sequence

from sjepa.data.layouts import Found, Item
from sjepa.errors import UserError

# The first that is there counts: of NeMo, lhotse, Canary's manifests, Common Voice; Kaldi's utt2lang is `lang`.
COLUMNS = ("lang", "language", "source_lang", "locale", "lang_id", "language_id")


def language_of(item: Item) -> str:
    """The language that an item's labels name, as they name it; empty if they name none."""
    labels = json.loads(item.labels) if item.labels else {}
    return next((str(labels[name]).strip() for name in COLUMNS if labels.get(name) not in (None, "")), "")


def is_spoken_in(named: str, wanted: str) -> bool:
    """Whether a language is the one that is wanted: `en` stands for en, EN, en-US and en_gb, not for eng."""
    named, wanted = (text.casefold().replace("_", "-") for text in (named, wanted))
    return named == wanted or named.split("-")[0] == wanted


def select_languages(found: Found, wanted: Sequence[str]) -> Found:
    """Items in one of the wanted languages; those of others are passed over, those of none are refused.

    Without languages, all. If no item names a language, there is nothing to select by: that is an error.
    """
    if not wanted:
        yield from found
        return
    kept = 0
    others: dict[str, None] = {}
    for item in found:
        if isinstance(item, str):
            yield item
            continue
        named = language_of(item)
        if not named:
            yield f"{item.id}: no language is named for it ({', '.join(COLUMNS[:3])})"
        elif any(is_spoken_in(named, each) for each in wanted):
            kept += 1
            yield item
        else:
            others[named] = None
    if not kept:
        there = f"there are {', '.join(list(others)[:8])}" if others else f"no column is called {', '.join(COLUMNS)}"
        raise UserError(f"--language {' '.join(wanted)}: no utterance is in it; {there}")
