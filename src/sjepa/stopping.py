"""Stop long work in an orderly way after a signal. Needs no torch, because signals may arrive while it loads."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
SAME = 1.0  # seconds; a launcher forwards a signal that the whole process group has already received

_active: "StopRequest | None" = None  # this process's request, while signals are handled


class StoppedError(Exception):
    """The work stopped on request. All progress is saved."""


class StopRequest:
    """True once a signal has asked to stop. Work checks it between steps."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        """When the work will stop, for the message that answers a signal."""
        self.number: int | None = None
        self.since = 0.0
        self.process = os.getpid()

    def __bool__(self) -> bool:
        return self.number is not None

    def signal_name(self) -> str:
        """Return the name of the signal that was received, or an empty string."""
        return "" if self.number is None else signal.Signals(self.number).name

    def receive(self, number: int, frame: object) -> None:
        """Handle a signal: print and remember it. A second Ctrl-C ends the process; other signals may repeat."""
        if os.getpid() != self.process:
            return  # a newly forked worker process: its parent handles signals
        if self.number is None:
            self.number, self.since = number, time.monotonic()
            if is_first_process():
                again = "; Ctrl-C again aborts" if number == signal.SIGINT else ""
                os.write(2, f"\nsjepa: {signal.Signals(number).name}: stopping {self.moment}{again}\n".encode())
        elif number == signal.SIGINT and time.monotonic() - self.since > SAME:
            signal.default_int_handler(number, None)


def is_first_process() -> bool:
    """Return whether this is the main rank, also before the ranks have joined."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


@contextmanager
def stop_requests(moment: str = "after this step", until_exit: bool = False) -> Iterator[StopRequest]:
    """Let SIGINT, SIGTERM and SIGUSR1 (a scheduler's warning) ask for a stop instead of ending the process.

    A nested call yields the request of the outer one. With `until_exit`, signals other than Ctrl-C are ignored after a
    request until the process exits.
    """
    global _active
    if _active is not None and _active.process == os.getpid():
        yield _active
        return
    request = _active = StopRequest(moment)
    handled = SIGNALS if threading.current_thread() is threading.main_thread() else []  # others get no signals
    before = [(number, signal.signal(number, request.receive)) for number in handled]
    try:
        yield request
    finally:
        _active = None
        for number, handler in before:
            if not (until_exit and request):
                signal.signal(number, handler)
            elif number != signal.SIGINT:
                signal.signal(number, signal.SIG_IGN)  # Python keeps this setting until the process ends
