"""Data parallelism over ranks: a few collectives that do nothing in a single process."""

import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sjepa.device import choose_device
from sjepa.errors import ReportedError, UserError, describe_file_error
from sjepa.stopping import nothing_unsaved

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)  # a rank may read slow storage or compile while the others wait


def setup(device: str) -> torch.device:
    """Join the process group if torchrun or srun started this process. Return the device of this rank."""
    os.environ.update(slurm_variables(os.environ))
    cuda = choose_device(device).type == "cuda"
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        local_rank %= torch.cuda.device_count()  # each task of srun may see only its own GPU
        torch.cuda.set_device(local_rank)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ and not dist.is_initialized():
        with nothing_unsaved():  # the other ranks may come late, or never
            dist.init_process_group("nccl" if cuda else "gloo", timeout=TIMEOUT, **join_store())
    return torch.device("cuda", local_rank) if cuda else torch.device("cpu")


def join_store() -> dict[str, Any]:
    """Return the arguments of `init_process_group`: store, rank and world size."""
    store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
    return {"store": dist.PrefixStore(agree_on_prefix(store, rank, size), store), "rank": rank, "world_size": size}


def agree_on_prefix(store: dist.Store, rank: int, size: int) -> str:
    """Return a prefix for the keys of the store that only the processes of this start share.

    torchrun keeps one store when it restarts processes, so a rank could wait for a process that has ended. Rank 0
    therefore draws a random prefix and answers each rank that greets it. The answer repeats the greeting, which is
    random too, so that no rank accepts an answer to an earlier process.
    """
    mine, start = os.urandom(8).hex(), time.monotonic()

    def read(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    def pause() -> None:
        if time.monotonic() - start > TIMEOUT.total_seconds():
            raise UserError(f"not all of {size} processes have started within {TIMEOUT.seconds // 60} minutes")
        time.sleep(0.02)

    if rank > 0:
        store.set(f"greeting/{rank}", mine)
        while (answer := read(f"answer/{rank}").partition(" "))[0] != mine:
            pause()
        store.set(f"joined/{rank}", answer[2])
        return answer[2]
    missing = set(range(1, size))
    while missing:
        for other in missing:
            if greeting := read(f"greeting/{other}"):
                store.set(f"answer/{other}", f"{greeting} {mine}")
        missing = {other for other in missing if read(f"joined/{other}") != mine}
        if missing:
            pause()
    return mine


def slurm_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun would set, if srun started this process as one of several tasks."""
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if "RANK" in environment or tasks == 1 or "SLURM_PROCID" not in environment:
        return {}
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(15_000 + int(environment["SLURM_JOB_ID"]) % 20_000),
    }


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: gpu003 for `gpu[003-007,12],login`."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", re.match(r"(?:[^,\[]|\[[^]]*\])*", nodes)[0])  # type: ignore[index]


def has_joined() -> bool:
    """Return whether this process is in a process group."""
    return dist.is_initialized()


def shutdown() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    return rank() == 0


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Sum a tensor over all ranks in place, and return it."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def broadcast_module(module: nn.Module) -> None:
    """Copy parameters and buffers of rank 0 to all ranks."""
    if dist.is_initialized():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, 0)


def broadcast_object(value: Any) -> Any:
    """Return the value of rank 0 on every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def gather_objects(value: Any) -> list[Any]:
    """Return the values of all ranks, in the order of the ranks."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def gather_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all ranks, in the order of the ranks. They must have the same shape."""
    if not dist.is_initialized():
        return [tensor]
    gathered = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(gathered, tensor.contiguous())
    return gathered


def run_on_main_rank(task: Callable[[], T]) -> T | None:
    """Run a task on the main rank, and return its result there. Its errors end all ranks, as in `run_on_all_ranks`."""
    return run_on_all_ranks(lambda: task() if is_main() else None)


def run_on_all_ranks(task: Callable[[], T]) -> T:
    """Run a task on every rank, and return its result. If it fails on one rank, all ranks end instead of waiting.

    This holds for UserError, and for OSError about a file, such as one on a full disk, which becomes a UserError. The
    main rank raises the error, and the others a ReportedError.
    """
    result = error = None
    try:
        result = task()
    except UserError as found:
        error = found
    except OSError as found:
        line = describe_file_error(found)
        if line is None:
            raise
        error = UserError(line)
    errors = [found for found in gather_objects(error) if found is not None]
    if errors:
        raise errors[0] if is_main() else ReportedError(str(errors[0]))
    return cast(T, result)
