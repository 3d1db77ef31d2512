"""Errors for people, in one line without a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake a person can mend: shown as one line, never as a traceback."""


def suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""
