"""Ending a run in good order when it is asked to."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from sjepa import distributed


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """A list that fills when the run is asked to end (Ctrl-C, SIGTERM); asked again, it ends at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    before = [(number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def stop_agreed(asked: list[int], may_ask: bool) -> bool:
    """Whether to stop now; several ranks ask each other only where `may_ask`, which must be alike on all."""
    if distributed.world_size() == 1:
        return bool(asked)
    return may_ask and any(len(other) for other in [asked, *distributed.gather_others(asked)])
