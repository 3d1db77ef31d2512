"""Errors that users can fix, shown without a traceback."""

import difflib
import errno
from collections.abc import Iterable

FULL = (errno.ENOSPC, errno.EDQUOT)  # a full disk or quota; the error then names no file


class UserError(Exception):
    """An error that the user can fix. The command line shows its message, mostly one line, without a traceback.

    >>> from sjepa import Encoder, UserError
    >>> try:
    ...     Encoder.from_pretrained("nowhere")
    ... except UserError as error:
    ...     print(error)
    there is no encoder nowhere: give a run, an encoder folder or a file of weights; ...
    """


class OutageError(UserError):
    """Storage did not answer for a long time. The command can continue once it does."""


class BusyError(UserError):
    """Another process holds a lock."""


class ReportedError(UserError):
    """An error that another process reports, so that several ranks print one line."""


def describe_file_error(error: OSError) -> str | None:
    """Return the file and the reason in one line. None if it is not about a file of the user: our bug."""
    if error.filename is None and error.errno not in FULL:
        return None
    where = error.filename2 or error.filename  # for a file that is moved, its destination
    return f"{where}: {error.strerror}" if where else str(error.strerror)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a hint with the known word that is most similar, or an empty string."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""
