"""Ending long work in good order when a signal asks for it. It needs no torch: signals may come while that loads."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
SAME = 1.0  # seconds: a launcher passes on a signal that its whole group has received already

_active: "StopRequest | None" = None  # of this process, while signals are handled


class StoppedError(Exception):
    """Work ended because it was asked to, with all that is done saved."""


class StopRequest:
    """Whether a signal has asked to stop. Work asks it between steps."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        """When the work will stop, as the answer to a signal says it."""
        self.number: int | None = None
        self.since = 0.0
        self.process = os.getpid()

    def __bool__(self) -> bool:
        return self.number is not None

    def signal_name(self) -> str:
        """The signal that asked; empty if none has."""
        return "" if self.number is None else signal.Signals(self.number).name

    def receive(self, number: int, frame: object) -> None:
        """Answer at once and remember. A second Ctrl-C ends the process; other signals may come any number of times."""
        if os.getpid() != self.process:
            return  # a worker process that was forked a moment ago: signals are its parent's
        if self.number is None:
            self.number, self.since = number, time.monotonic()
            if is_first_process():
                again = "; Ctrl-C again aborts" if number == signal.SIGINT else ""
                os.write(2, f"\nsjepa: {signal.Signals(number).name}: stopping {self.moment}{again}\n".encode())
        elif number == signal.SIGINT and time.monotonic() - self.since > SAME:
            signal.default_int_handler(number, None)


def is_first_process() -> bool:
    """Whether this is the main rank, or will be when ranks have joined."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


@contextmanager
def stop_requests(moment: str = "after this step", until_exit: bool = False) -> Iterator[StopRequest]:
    """Let SIGINT, SIGTERM and SIGUSR1 (a scheduler's warning) ask for a stop instead of ending the process.

    Within another one, that one's request is used. `until_exit`: after a request, further signals change nothing while
    the process exits, except Ctrl-C.
    """
    global _active
    if _active is not None and _active.process == os.getpid():
        yield _active
        return
    request = _active = StopRequest(moment)
    handled = SIGNALS if threading.current_thread() is threading.main_thread() else []  # others receive none
    before = [(number, signal.signal(number, request.receive)) for number in handled]
    try:
        yield request
    finally:
        _active = None
        for number, handler in before:
            if not (until_exit and request):
                signal.signal(number, handler)
            elif number != signal.SIGINT:
                signal.signal(number, signal.SIG_IGN)  # Python itself leaves this in place to the end
