"""Agreement between ranks: that they share a disk, and after which step they stop."""

import platform
import time
import uuid

import torch

from sjepa import distributed
from sjepa.errors import UserError
from sjepa.runs.folder import RunFolder
from sjepa.stopping import StoppedError, StopRequest, is_asked_to_stop
from sjepa.train.run import Run

LAG = 4  # steps after which the answer of a GPU is read: it is ready by then, so the host does not wait
PATIENCE = 10.0  # seconds until a network disk shows a new file to other machines


def check_same_audio(fingerprint: str) -> None:
    """Raise UserError if a rank has read other audio than the main rank. The ranks would cut batches differently."""
    found = distributed.gather_objects((platform.node(), fingerprint))
    others = [f"{rank} on {node}" for rank, (node, audio) in enumerate(found) if audio != found[0][1]]

    def refuse() -> None:
        if others:
            raise UserError(
                f"rank {', '.join(others)} has read other audio than rank 0: --data must be the same for all ranks, "
                "and every file readable"
            )

    distributed.run_on_main_rank(refuse)


def check_shared_disk(folder: RunFolder) -> None:
    """Raise UserError if a rank cannot see the run folder of the main rank."""
    if distributed.world_size() == 1:
        return
    mark = folder.path / distributed.broadcast_object(f".seen-{uuid.uuid4().hex}")
    made = distributed.is_main() and not folder.path.exists()

    def write_mark() -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        mark.touch()

    distributed.run_on_main_rank(write_mark)

    def find_mark() -> None:
        until = time.monotonic() + PATIENCE
        while not mark.exists():
            if time.monotonic() > until:
                raise UserError(
                    f"rank {distributed.rank()} on {platform.node()} does not see {folder} as the main rank does: "
                    "--out must be on a disk that all machines share"
                )
            time.sleep(0.1)

    try:
        distributed.run_on_all_ranks(find_mark)
    finally:
        if distributed.is_main():
            mark.unlink(missing_ok=True)
            if made:
                folder.path.rmdir()


def stop_if_asked() -> None:
    """Raise StoppedError on all ranks if one of them was asked to stop. Call it only while nothing is unsaved."""
    if any(distributed.gather_objects(is_asked_to_stop())):
        raise StoppedError


class StopAgreement:
    """Let all ranks stop after the same step, once one of them was asked to stop.

    The request of a rank is summed together with the gradients of the step, so it needs no extra collective. On a GPU
    the sum is read a few steps later, when it is ready without waiting.
    """

    def __init__(self, run: Run, request: StopRequest):
        self.run, self.request = run, request
        self.answers: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def ask(self) -> None:
        """Before a step, tell the other ranks about a request."""
        if self.request and distributed.world_size() > 1:
            self.run.stop_wish.fill_(1.0)

    def is_reached(self) -> bool:
        """After a step, return whether to stop here. All ranks get the same answer."""
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
