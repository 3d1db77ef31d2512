"""Find the language of an utterance in the columns of a list, and select utterances by language."""

import json
from collections.abc import Sequence

from sjepa.data.layouts import Found, Item
from sjepa.errors import UserError

# The first column that is present counts: NeMo, lhotse, Canary, Common Voice. Kaldi's utt2lang becomes `lang`.
COLUMNS = ("lang", "language", "source_lang", "locale", "lang_id", "language_id")


def read_language(item: Item) -> str:
    """The language in an item's labels, as spelled there; empty if there is none."""
    labels = json.loads(item.labels) if item.labels else {}
    return next((str(labels[name]).strip() for name in COLUMNS if labels.get(name) not in (None, "")), "")


def is_spoken_in(named: str, wanted: str) -> bool:
    """Whether a language matches the wanted one: `en` matches en, EN, en-US and en_gb, but not eng."""
    named, wanted = (text.casefold().replace("_", "-") for text in (named, wanted))
    return named == wanted or named.split("-")[0] == wanted


def select_languages(found: Found, wanted: Sequence[str]) -> Found:
    """Yield the items in one of the wanted languages. Items without a language are refused.

    Without wanted languages, all items are yielded. It is an error if no item matches.
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
        named = read_language(item)
        if not named:
            yield f"{item.id}: it has no language ({', '.join(COLUMNS[:3])})"
        elif any(is_spoken_in(named, each) for each in wanted):
            kept += 1
            yield item
        else:
            others[named] = None
    if not kept:
        known = f"there are {', '.join(list(others)[:8])}" if others else f"no column is called {', '.join(COLUMNS)}"
        raise UserError(f"--language {' '.join(wanted)}: no utterance matches; {known}")
