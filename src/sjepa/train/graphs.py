"""A training step replayed as one CUDA graph, so that the host launches once and not a thousand times."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class StepGraphs:
    """Graphs by what fixes a step's work: shape, LayerDrop, loss set, decay, active layer.

    A step of a new kind runs as it is, which also compiles; the second of its kind is captured, the rest are replayed.
    All graphs share one memory pool, because only one runs at a time.
    """

    def __init__(self) -> None:
        self.seen: set[Hashable] = set()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.inputs: dict[Hashable, list[Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, kind: Hashable, inputs: list[Tensor], work: Callable[..., None]) -> None:
        """Do `work(*inputs)`. It may change tensors in place but must not depend on host values that `kind` lacks."""
        shapes = tuple(tensor.shape for tensor in inputs)
        kind = (kind, shapes)
        if kind not in self.seen:
            self.seen.add(kind)
            work(*inputs)
            return
        if shapes not in self.inputs:
            self.inputs[shapes] = [torch.empty_like(tensor) for tensor in inputs]
        static = self.inputs[shapes]
        torch._foreach_copy_(static, inputs)
        if kind not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            # Another thread prepares batches on the device meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                work(*static)
            self.graphs[kind] = graph
        self.graphs[kind].replay()
