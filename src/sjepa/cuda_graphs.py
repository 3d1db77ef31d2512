"""Replay a training step as one CUDA graph, so that the host launches one graph instead of a thousand kernels."""

from collections.abc import Callable, Hashable
from contextlib import suppress

import torch
from torch import Tensor

from sjepa.device import cuda_stream

MOST_GRAPHS = 512  # LayerDrop alone causes 64 kinds of step; each graph takes a few megabytes of driver memory


class StepGraphs:
    """CUDA graphs, one per kind of step: shape, LayerDrop, loss terms, decay and active layer.

    The first step of a new shape or a new `code` runs without a graph, which also compiles the network: a capture
    cannot compile. After that, the first step of each kind is captured, and later ones are replayed. All graphs share
    one memory pool, because only one runs at a time. A step without a graph needs as much memory again, so all graphs
    are dropped first and captured again later. Beyond the largest number they are dropped together too: a graph that is
    dropped alone may free what torch shares between graphs of a stream.
    """

    def __init__(self) -> None:
        self.stream = cuda_stream("graphs", torch.device("cuda", torch.cuda.current_device()))
        self.inputs: dict[Hashable, list[Tensor]] = {}
        self.clear()

    def clear(self) -> None:
        torch.cuda.synchronize()  # a graph that is dropped may still run
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def run(self, kind: Hashable, inputs: list[Tensor], work: Callable[..., None], code: Hashable = None) -> None:
        """Run `work(*inputs)`. It may change tensors in place. It must not use host values outside `kind`.

        `code` is the part of `kind` for which other code is compiled.
        """
        compiled = (code, *(tensor.shape for tensor in inputs))
        kind = (kind, compiled)
        if compiled not in self.inputs:
            self.clear()
            work(*inputs)
            self.inputs[compiled] = [torch.empty_like(tensor) for tensor in inputs]
            torch.cuda.synchronize()  # expandable segments are returned while other streams still use them
            torch.cuda.empty_cache()
            return
        for captured, new in zip(self.inputs[compiled], inputs, strict=True):
            captured.copy_(new)
        if kind not in self.graphs:
            if len(self.graphs) == MOST_GRAPHS:
                self.clear()
            self.graphs[kind] = self.capture(self.inputs[compiled], work)
        self.graphs[kind].replay()

    def capture(self, inputs: list[Tensor], work: Callable[..., None]) -> torch.cuda.CUDAGraph:
        """Capture a step as a graph."""
        # Like torch.cuda.graph, but without garbage collection and clearing of the cache each time.
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            # Another thread prepares batches on the device at the same time.
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                work(*inputs)
            except BaseException:
                with suppress(RuntimeError):  # it would hide the first error, such as a lack of memory
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph
