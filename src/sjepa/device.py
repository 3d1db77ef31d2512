"""Choose the device."""

import sys
from functools import cache
from typing import TYPE_CHECKING, Literal

from sjepa.cpu_load import available_cores, cores_in_use
from sjepa.errors import UserError

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]


@cache
def explain_mps() -> None:
    """Report once that an Apple GPU is not used."""
    print("Apple's GPU (MPS) is not supported: the CPU is used", file=sys.stderr, flush=True)


@cache
def explain_busy_cpu() -> None:
    """Report once if other programs use cores that torch would use. Each operation waits for its slowest core.

    Commands whose work takes minutes call this once their arguments are checked.
    """
    import torch

    threads, cores = torch.get_num_threads(), len(available_cores())
    if threads == 1:
        return
    used = cores_in_use()
    fitting = max(1, round(cores - used))
    if fitting < threads:
        print(
            f"Other programs use {used:.1f} of {cores} cores, so work on all cores is slow. "
            f"To use fewer, stop this command and start it with OMP_NUM_THREADS={fitting}",
            file=sys.stderr,
            flush=True,
        )


def choose_device(wanted: str) -> "torch.device":
    """Return the device of that name. `auto` means a GPU if there is one."""
    import torch  # here, because every command imports `Device`

    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: there is no GPU that torch can use; choose auto or cpu")
    if wanted == "auto" and not torch.cuda.is_available() and torch.backends.mps.is_available():
        explain_mps()
    if wanted != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


@cache
def cuda_stream(
    purpose: Literal["copies", "targets", "gradients", "graphs"], device: "torch.device"
) -> "torch.cuda.Stream":
    """Return the CUDA stream of this process for a purpose.

    torch deals 32 streams in turn. If each run took its own, two purposes would share a stream in a process that trains
    many runs, and a copy would become part of a captured graph.
    """
    import torch

    return torch.cuda.Stream(device)


def describe_gpu_sharing() -> str:
    """Return how much of the GPU's memory other programs hold, or nothing if they hold little or there is no GPU.

    CUDA itself takes up to a GiB per process, which torch does not count as its own.
    """
    import torch

    if not torch.cuda.is_initialized():
        return ""
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    return (
        f"other programs use {others / 2**30:.0f} of the GPU's {total / 2**30:.0f} GiB" if others > total / 10 else ""
    )
