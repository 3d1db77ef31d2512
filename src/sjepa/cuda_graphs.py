"""A training step replayed as one CUDA graph, so that the host launches once and not a thousand times."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

MOST_GRAPHS = 512  # LayerDrop alone makes 64 kinds of step; each graph holds a few megabytes of the driver's memory


class StepGraphs:
    """Graphs by what fixes a step's work: shape, LayerDrop, loss set, decay, active layer.

    The first step of a new shape runs as it is, which also compiles; from the second on a step of a new kind is
    captured and the rest are replayed. All graphs share one memory pool, because only one runs at a time. A step that
    runs as it is needs as much memory again, so the graphs of other shapes make room for it and are captured anew.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.inputs: dict[Hashable, list[Tensor]] = {}
        self.clear()

    def clear(self) -> None:
        self.graphs: OrderedDict[Hashable, torch.cuda.CUDAGraph] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def run(self, kind: Hashable, inputs: list[Tensor], work: Callable[..., None]) -> None:
        """Do `work(*inputs)`. It may change tensors in place but must not depend on host values that `kind` lacks."""
        shapes = tuple(tensor.shape for tensor in inputs)
        kind = (kind, shapes)
        if shapes not in self.inputs:
            self.clear()
            work(*inputs)
            self.inputs[shapes] = [torch.empty_like(tensor) for tensor in inputs]
            torch.cuda.empty_cache()
            return
        for captured, new in zip(self.inputs[shapes], inputs, strict=True):
            captured.copy_(new)
        if kind not in self.graphs:
            self.graphs[kind] = self.capture(self.inputs[shapes], work)
            if len(self.graphs) > MOST_GRAPHS:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(kind)
        self.graphs[kind].replay()

    def capture(self, inputs: list[Tensor], work: Callable[..., None]) -> torch.cuda.CUDAGraph:
        # As torch.cuda.graph does, but without a garbage collection and an emptied cache each time.
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            # Another thread prepares batches on the device meanwhile.
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                work(*inputs)
            finally:
                graph.capture_end()
        return graph
