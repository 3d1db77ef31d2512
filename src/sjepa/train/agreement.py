"""What ranks agree on: that they share a disk, and after which step they stop."""

import platform
import time
import uuid

import torch

from sjepa import distributed
from sjepa.errors import UserError
from sjepa.runs.folder import RunFolder
from sjepa.stopping import StoppedError, StopRequest
from sjepa.train.run import Run

LAG = 4  # steps after which a GPU's answer is read: it has it long since, so the host does not wait
PATIENCE = 10.0  # seconds that a network disk may take to show a new file to other machines


def check_shared(folder: RunFolder) -> None:
    """Refuse a directory that not every rank sees, before any work is done for it."""
    if distributed.world_size() == 1:
        return
    mark = folder.path / distributed.broadcast_object(f".seen-{uuid.uuid4().hex}")
    made = distributed.is_main() and not folder.path.exists()

    def leave() -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        mark.touch()

    distributed.in_main_rank(leave)

    def look() -> None:
        until = time.monotonic() + PATIENCE
        while not mark.exists():
            if time.monotonic() > until:
                raise UserError(
                    f"rank {distributed.rank()} on {platform.node()} does not see {folder} as the main rank does: "
                    "--out must be on a disk that all machines share"
                )
            time.sleep(0.1)

    try:
        distributed.in_all_ranks(look)
    finally:
        if distributed.is_main():
            mark.unlink(missing_ok=True)
            if made:
                folder.path.rmdir()


def stop_if_asked(request: StopRequest) -> None:
    """Outside of steps, where nothing is unsaved: raise StoppedError on all ranks if one of them was asked to stop."""
    if any(distributed.gather_objects(bool(request))):
        raise StoppedError


class StopAgreement:
    """After which step all ranks stop, once one of them was asked to.

    Each rank's wish travels with the sums of the step, so it costs no collective of its own. A GPU's sum is read a few
    steps later, when it is there without waiting.
    """

    def __init__(self, run: Run, request: StopRequest):
        self.run, self.request = run, request
        self.answers: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def ask(self) -> None:
        """Before a step: let the other ranks know of a request."""
        if self.request and distributed.world_size() > 1:
            self.run.stop_wish.fill_(1.0)

    def reached(self) -> bool:
        """After a step: whether it is the last. All ranks get the same answer."""
        if distributed.world_size() == 1:
            return bool(self.request)
        wishes = self.run.stop_wishes
        if not wishes.is_cuda:
            return bool(wishes)
        answer, event = torch.empty(1, pin_memory=True), torch.cuda.Event()
        answer.copy_(wishes, non_blocking=True)
        event.record()
        self.answers.append((answer, event))
        if len(self.answers) <= LAG:
            return False
        answer, event = self.answers.pop(0)
        event.synchronize()
        return bool(answer)
