"""Ending long work in good order when a signal asks for it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sjepa import distributed

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
SAME = 1.0  # seconds: a launcher passes on a signal that its whole group has received already


class StopRequest:
    """Whether a signal has asked to stop. Work asks it between steps."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.since = 0.0

    def __bool__(self) -> bool:
        return self.number is not None

    def signal_name(self) -> str:
        """The signal that asked; empty if none has."""
        return "" if self.number is None else signal.Signals(self.number).name

    def receive(self, number: int, frame: object) -> None:
        """Answer at once and remember. A second Ctrl-C ends the process; other signals may come any number of times."""
        if self.number is None:
            self.number, self.since = number, time.monotonic()
            if distributed.is_main():
                again = "; Ctrl-C again aborts" if number == signal.SIGINT else ""
                os.write(2, f"\nsjepa: {signal.Signals(number).name}: stopping after this step{again}\n".encode())
        elif number == signal.SIGINT and time.monotonic() - self.since > SAME:
            signal.default_int_handler(number, None)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Let SIGINT, SIGTERM and SIGUSR1 (a scheduler's warning) ask for a stop instead of ending the process."""
    request = StopRequest()
    handled = SIGNALS if threading.current_thread() is threading.main_thread() else []  # others receive none
    before = [(number, signal.signal(number, request.receive)) for number in handled]
    try:
        yield request
    finally:
        for number, handler in before:
            signal.signal(number, handler)
