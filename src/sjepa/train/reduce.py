"""Sum gradients and a few numbers of a training step over ranks, in two collectives.

The first collective sums the gradients of everything after the convolutional front end (93% of them). It overlaps with
the backward pass of the front end. The second sums the gradients of the front end and the numbers. Both use one buffer
with a fixed address, so that they can be part of a CUDA graph.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sjepa.device import cuda_stream
from sjepa.torch_private import copy_all


class StepSum:
    """The buffer of one rank. A single process has no buffer and copies nothing."""

    def __init__(self, early: Iterable[nn.Parameter], late: Iterable[nn.Parameter], numbers: int, device: torch.device):
        """Gradients of `early` parameters are ready first. `numbers` is the count of additional numbers to sum."""
        self.early, self.late = list(early), list(late)
        self.shared = dist.is_initialized()
        if not self.shared:
            return
        sizes = [p.numel() for p in [*self.early, *self.late]]
        self.buffer = torch.zeros(sum(sizes) + numbers, device=device)
        parts = self.buffer.split([*sizes, numbers])
        self.places = {p: part.view_as(p) for p, part in zip([*self.early, *self.late], parts, strict=False)}
        self.numbers = parts[-1]
        self.first = sum(p.numel() for p in self.early)
        self.stream = cuda_stream("gradients", device) if device.type == "cuda" else None
        self.pending: dist.Work | None = None

    def start(self) -> None:
        """Start to sum the early gradients. Later work on the device does not wait for it."""
        if not self.shared:
            return
        self.fill(self.early)
        if self.stream is None:
            self.pending = dist.all_reduce(self.buffer[: self.first], async_op=True)
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            dist.all_reduce(self.buffer[: self.first])

    def finish(self, numbers: Tensor) -> Tensor:
        """Sum the late gradients and the numbers, and wait for the early ones. Return the summed numbers.

        Afterwards, the gradient of each parameter that had one is the sum over all ranks.
        """
        if not self.shared:
            return numbers
        self.fill(self.late)
        self.numbers.copy_(numbers)
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        elif self.pending is not None:
            self.pending.wait()
        dist.all_reduce(self.buffer[self.first :])
        for p, place in self.places.items():
            if p.grad is not None:
                p.grad = place
        return self.numbers

    def fill(self, parameters: list[nn.Parameter]) -> None:
        """Copy gradients to the buffer. LayerDrop and a frozen front end leave some out, equally on all ranks."""
        with_gradient = [p for p in parameters if p.grad is not None]
        copy_all([self.places[p] for p in with_gradient], [p.grad for p in with_gradient if p.grad is not None])
        for p in parameters:
            if p.grad is None:
                self.places[p].zero_()
