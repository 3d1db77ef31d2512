"""The private parts of torch that training needs. Only this module uses them: a new version of torch may move them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def raise_recompile_limit(limit: int) -> None:
    """Let torch.compile make this many versions of one function before it gives up and runs it uncompiled.

    Each bucket's shape and mode needs a version, and the default is 8. torch 2.8 has no public setting for it;
    `torch.compiler.config.recompile_limit` came later.
    """
    torch._dynamo.config.recompile_limit = limit


def disable_padded_buffers() -> None:
    """Keep the compiler from padding the strides of its buffers, in all that is compiled from now on.

    Up to torch 2.11 a padded buffer can be read with the strides it had before: the gradient of the position
    convolution was garbage. The public way, `torch.compile(options={"comprehensive_padding": False})`, must be
    repeated at every call, and one that forgets it computes wrong gradients without an error.
    """
    torch._inductor.config.comprehensive_padding = False


def count_compiled_graphs() -> int:
    """Graphs that this process has compiled: it should stop rising once every bucket has been seen.

    Torch tells this number only in its logs, as text.
    """
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def is_failed_allocation(error: RuntimeError) -> bool:
    """Whether torch could not allocate memory. On a GPU this has a class of its own, on a CPU only words tell it."""
    words = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def copy_all(places: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its place in one launch. A loop of `copy_` launches one kernel per tensor."""
    if places:
        torch._foreach_copy_(places, sources)


def prepare_step(optimizer: torch.optim.Optimizer, divisor: Tensor, skip: Tensor) -> None:
    """Let a fused optimizer's next step divide all gradients by `divisor`, and change nothing where `skip` is true.

    Both are numbers on the device. `torch.amp.GradScaler` sets the same attributes, but for a loss scale of its own. A
    division of its own would read and write every gradient once more. An `if` in Python would make the host wait for
    the device in every step, and cannot be part of a CUDA graph.
    """
    optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
    optimizer.found_inf = skip.float()  # type: ignore[attr-defined]


def end_workers(batches: Iterator[Any]) -> None:
    """End the worker processes of a data loader's iterator now.

    By itself it ends them when nothing refers to it any more. The traceback of an error does, and then the process
    waits for its workers forever when it exits.
    """
    batches._shutdown_workers()  # type: ignore[attr-defined]
