"""Call the command line in this process, which is faster than a new process per call."""

import contextlib
import io
import traceback
from typing import NamedTuple

from sjepa import cli


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    """The exit code; -1 for an exception that nothing caught."""
    output: str
    """Everything on the standard error, with the traceback if there was one."""
    printed: str = ""


def sjepa(*arguments: object) -> Ended:
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except Exception:
            status = -1
            traceback.print_exc()
    return Ended(status, err.getvalue(), out.getvalue())
