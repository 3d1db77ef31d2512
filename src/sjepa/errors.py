"""Errors for people, in one line without a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake a person can mend: shown as one line, never as a traceback.

    >>> from sjepa import Encoder, UserError
    >>> try:
    ...     Encoder.from_pretrained("nowhere")
    ... except UserError as error:
    ...     print(error)
    there is no encoder nowhere: give a run, an encoder folder or a file of weights; ...
    """


def suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""
