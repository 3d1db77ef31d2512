"""Wait between attempts to reach a server that fails."""

import time
from collections.abc import Callable

FIRST_WAIT = 0.5  # seconds before the second try; each further wait is twice as long, up to the longest
LONGEST_WAIT = 10.0
OUTAGE = 1200.0  # seconds to wait for a server that does not answer: less than ranks wait for each other


def never_stopped() -> bool:
    return False


class Wait:
    """The pauses between tries. After `tries` failures, one line is reported and tries continue for `patience` seconds.

    `where` is what is tried. `is_stopped` returns true once nobody needs the answer, which ends a pause.
    """

    def __init__(
        self,
        where: str,
        tries: int,
        patience: float = 0.0,
        is_stopped: Callable[[], bool] = never_stopped,
        report: Callable[[str], None] | None = None,
    ):
        self.where, self.tries, self.patience = where, tries, patience
        self.is_stopped, self.report = is_stopped, report
        self.began, self.failures, self.seconds = time.monotonic(), 0, FIRST_WAIT

    def try_again(self, reason: str, answered: bool = False) -> bool:
        """Pause after a failure, and return true. Return false if it is time to give up.

        `answered` says that the server answered, though not as it should. It gets no more than `tries` tries.
        """
        self.failures += 1
        is_patient = not answered and time.monotonic() - self.began < self.patience
        if self.is_stopped() or (self.failures >= self.tries and not is_patient):
            return False
        if self.failures == self.tries and self.report is not None:
            self.report(f"{self.where}: no answer ({reason}); trying again for up to {self.patience / 60:g} minutes")
        self.pause(min(LONGEST_WAIT, self.seconds))
        self.seconds = min(LONGEST_WAIT, 2 * self.seconds)
        return True

    def pause(self, seconds: float) -> None:
        """Sleep, but wake up when the work is stopped."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.is_stopped():
            time.sleep(min(0.1, left))
