"""Data parallelism over ranks: a handful of collectives that do nothing in a single process."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sjepa.device import choose_device
from sjepa.errors import UserError


def setup(device: str) -> torch.device:
    """Join the process group when started by torchrun, and pick this rank's device ("auto", "cpu" or "cuda")."""
    cuda = choose_device(device).type == "cuda"
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local_rank)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    return torch.device("cuda", local_rank) if cuda else torch.device("cpu")


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
    """All-reduce in place; returns the tensor."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up gradients over ranks in one all-reduce.

    Which parameters have a gradient depends on LayerDrop, which every rank draws alike from the seed and the
    step, so the list is the same everywhere and no rank can wait for another.
    """
    if not dist.is_initialized():
        return
    trained = [p for p in parameters if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in trained if p.grad is not None])
    dist.all_reduce(flat)
    for p, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = part.view_as(p)  # no copy: gradients stay parts of the sum until the step is done


def broadcast_module(module: nn.Module) -> None:
    """Make every rank's parameters and buffers equal to rank 0's."""
    if dist.is_initialized():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, 0)


def broadcast_object(value: Any) -> Any:
    """Rank 0's value on every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def gather_others(value: Any) -> list[Any]:
    """The other ranks' values, in the order of their ranks."""
    if not dist.is_initialized():
        return []
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return [other for index, other in enumerate(values) if index != rank()]


def gather_tensors(tensor: Tensor) -> list[Tensor]:
    """Every rank's tensor, all of one shape, in the order of the ranks."""
    if not dist.is_initialized():
        return [tensor]
    gathered = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(gathered, tensor.contiguous())
    return gathered


def in_main_rank(task: Callable[[], None]) -> None:
    """Run a task on the main rank; its refusal is raised on all."""
    refusal = None
    if is_main():
        try:
            task()
        except UserError as error:
            refusal = str(error)
    refusal = broadcast_object(refusal)
    if refusal:
        raise UserError(refusal)
