"""Private APIs of torch, used only in this module, because a new version of torch may change them."""

import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from sjepa.stopping import SIGNALS


def raise_recompile_limit(limit: int) -> None:
    """Let torch.compile compile this many versions of a function before it runs the function uncompiled.

    Each combination of bucket and mode needs a version, and the default limit is 8. torch 2.8 has no public setting;
    `torch.compiler.config.recompile_limit` came later.
    """
    torch._dynamo.config.recompile_limit = limit


def disable_padded_buffers() -> None:
    """Stop the compiler from padding the strides of its buffers, for everything that is compiled afterwards.

    Up to torch 2.11, a padded buffer can be read with its strides from before padding: the gradient of the position
    convolution was wrong. The public option, `torch.compile(options={"comprehensive_padding": False})`, must be
    repeated at every call. A call without it computes wrong gradients without an error.
    """
    torch._inductor.config.comprehensive_padding = False


def silence_compiler() -> None:
    """Leave out warnings that ask for nothing: TF32 is off on purpose, the equalizer needs a Fourier transform, and
    `keep_attention` is safe here."""
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    warnings.filterwarnings("ignore", message="Torchinductor does not support code generation for complex operators")
    logging.getLogger("torch._higher_order_ops.wrap").setLevel(logging.ERROR)


def start_compile_workers() -> None:
    """Start the processes in which torch compiles, with stop signals blocked. They end when this process ends.

    `timeout` and schedulers send these signals to every process of a job. If a worker ended, a run that finishes its
    first step would wait for its kernels forever.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # new processes inherit it
    try:
        from torch._inductor.async_compile import AsyncCompile  # this import may start the workers

        AsyncCompile.warm_pool()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def count_compiled_graphs() -> int:
    """Return the number of graphs that this process has compiled. It should stop rising once every bucket has occurred.

    Torch reports this number only in its logs, as text.
    """
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def is_failed_allocation(error: RuntimeError) -> bool:
    """Return whether torch ran out of memory.

    Torch's own allocator for GPUs has an exception class. Elsewhere, only the message tells.
    """
    words = (
        "can't allocate memory",
        "not enough memory",
        "Storage size calculation overflowed",
        "CUDA error: out of memory",  # of the driver, for example when it makes a CUDA graph
        "CUBLAS_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
    )
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def is_gpu_failure(error: RuntimeError) -> bool:
    """Return whether the GPU reported an error. Those that its libraries pass on have no exception class."""
    starts = ("CUDA error", "CUDA driver error", "cuDNN error", "Triton Error [CUDA]")
    return isinstance(error, torch.AcceleratorError) or str(error).startswith(starts)


def cpu_attention() -> Any:
    """Return the operator that computes attention on a CPU. Torch's counter of operations sees this private name."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def keep_attention() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Store what the attention kernel returns while `checkpoint` recomputes the rest of a layer.

    To recompute dropout inside this kernel, the compiler saves the state of a random generator, and a CUDA graph cannot
    contain that. The kernels have only private names.
    """
    kernels = (
        torch.ops.aten._scaled_dot_product_cudnn_attention,
        torch.ops.aten._scaled_dot_product_efficient_attention,
        torch.ops.aten._scaled_dot_product_flash_attention,
        cpu_attention(),
    )
    contexts: tuple[AbstractContextManager[None], AbstractContextManager[None]]
    contexts = create_selective_checkpoint_contexts([kernel.default for kernel in kernels])
    return contexts


def copy_all(places: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its place with one kernel launch. A loop of `copy_` launches one kernel per tensor."""
    if places:
        torch._foreach_copy_(places, sources)


def prepare_step(optimizer: torch.optim.Optimizer, divisor: Tensor, skip: Tensor) -> None:
    """Make the next step of a fused optimizer divide all gradients by `divisor`, or do nothing if `skip` is true.

    Both are scalars on the device. `torch.amp.GradScaler` sets the same attributes, but for its own loss scale. A
    separate division would read and write every gradient once more. An `if` in Python would make the host wait for
    the device in every step, and cannot be part of a CUDA graph.
    """
    optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
    optimizer.found_inf = skip.float()  # type: ignore[attr-defined]


def end_workers(batches: Iterator[Any]) -> None:
    """End the worker processes of a data loader's iterator now.

    Otherwise they end when nothing refers to the iterator any more. The traceback of an error refers to it, and then
    the process waits for its workers forever when it exits.
    """
    batches._shutdown_workers()  # type: ignore[attr-defined]
