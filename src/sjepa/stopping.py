"""Stop long work in an orderly way after a signal. Needs no torch, because signals may arrive while it loads."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NoReturn

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
SAME = 1.0  # seconds; a launcher forwards a signal that the whole process group has already received
BLOCKED = 1.0  # seconds until the main thread counts as blocked in code that is not Python's
INTERRUPTED = 130  # exit code

_active: "StopRequest | None" = None  # this process's request, while signals are handled


class StoppedError(BaseException):
    """The work stopped on request. All progress is saved.

    Like KeyboardInterrupt, this is no Exception, so that handlers of all errors do not take it for, say, damaged audio.
    """


class StopRequest:
    """True once a signal has asked to stop. Work checks it between steps."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        """When the work will stop, for the message that answers a signal."""
        self.number: int | None = None
        self.since = 0.0
        self.process = os.getpid()
        self.unsaved = True
        """Whether there may be something to save. Otherwise a signal ends the work at once."""
        self.received: set[int] = set()  # signals that the main thread has received
        self.answered: set[int] = set()  # signals that were answered while the main thread was blocked

    def __bool__(self) -> bool:
        return self.number is not None

    def signal_name(self) -> str:
        """Return the name of the signal that was received, or an empty string."""
        return "" if self.number is None else signal.Signals(self.number).name

    def receive(self, number: int, frame: object) -> None:
        """Handle a signal in the main thread."""
        if os.getpid() != self.process:
            return  # a newly forked worker process: its parent handles signals
        self.received.add(number)
        if number in self.answered:
            self.answered.discard(number)
        elif not self.answer(number, time.monotonic()):
            if self.unsaved:
                raise KeyboardInterrupt
            end_work()

    def answer(self, number: int, now: float) -> bool:
        """Print and remember a signal. Return False if it should end the work at once.

        It should if there is nothing to save, and at a second Ctrl-C. Other signals may repeat.
        """
        if self.number is None:
            self.number, self.since = number, now
            if is_first_process():
                again = "; Ctrl-C again aborts" if number == signal.SIGINT else ""
                words = f"stopping {self.moment}{again}" if self.unsaved else "stopped"
                os.write(2, f"\nsjepa: {signal.Signals(number).name}: {words}\n".encode())
            if not self.unsaved:
                return False
        return number != signal.SIGINT or now - self.since <= SAME

    def watch(self, signals: int) -> None:
        """Answer signals that the main thread does not receive, because it waits in code that is not Python's.

        `signals` is a pipe with the number of every signal. Ranks wait like this for each other. Signals that the main
        thread has received before are left to it, because this thread may be late.
        """
        while numbers := os.read(signals, 256):
            now = time.monotonic()
            time.sleep(BLOCKED)
            for number in dict.fromkeys(numbers):
                if number not in self.received:
                    self.answered.add(number)
                    if not self.answer(number, now):
                        os._exit(INTERRUPTED)
        os.close(signals)


@contextmanager
def nothing_unsaved() -> Iterator[None]:
    """Let a signal end the work at once, because there is nothing to save."""
    request = _active
    if request is None:
        yield
        return
    before, request.unsaved = request.unsaved, False
    try:
        if request:
            end_work()
        yield
    finally:
        request.unsaved = before


def end_work() -> NoReturn:
    """Raise StoppedError. One of several ranks exits instead, so that the launcher ends those that wait for it."""
    if not is_alone():
        os._exit(INTERRUPTED)
    raise StoppedError


def is_asked_to_stop() -> bool:
    """Return whether a signal has asked this process to stop."""
    return bool(_active)


def stop_waiting_if_asked() -> None:
    """Raise StoppedError in a single process that was asked to stop. Several ranks agree on a stop in a step."""
    if is_asked_to_stop() and is_alone():
        raise StoppedError


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 (a scheduler's warning) end the block like Ctrl-C, with KeyboardInterrupt.

    Further ones are ignored until the process exits.

    Ranks of several processes are left alone: one that waits for another could not raise it.
    """
    process = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        if os.getpid() != process:  # a forked worker process, which has nothing to save
            os._exit(INTERRUPTED)
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # `timeout` and schedulers repeat them
        raise KeyboardInterrupt

    if not is_alone() or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS if number != signal.SIGINT}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)


def is_alone() -> bool:
    """Return whether there is only one rank, also before the ranks have joined."""
    return os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1")) == "1"


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
    wakeup = start_watching(request) if handled else nullcontext()
    try:
        with wakeup:
            yield request
    finally:
        _active = None
        for number, handler in before:
            if not (until_exit and request):
                signal.signal(number, handler)
            elif number != signal.SIGINT:
                signal.signal(number, signal.SIG_IGN)  # Python keeps this setting until the process ends


@contextmanager
def start_watching(request: StopRequest) -> Iterator[None]:
    """Run `request.watch` in a thread."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    past = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=request.watch, args=(reading,), daemon=True, name="signals").start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(past)
        os.close(writing)
