"""Choose the device."""

import sys
from functools import cache
from typing import TYPE_CHECKING, Literal

from sjepa.errors import UserError

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]


@cache
def explain_mps() -> None:
    """Report once that an Apple GPU is not used."""
    print("Apple's GPU (MPS) is not supported: the CPU is used", file=sys.stderr, flush=True)


def choose_device(wanted: str) -> "torch.device":
    """Return the device of that name. `auto` means a GPU if there is one."""
    import torch  # here, because every command imports `Device`

    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: there is no GPU that torch can use; choose auto or cpu")
    if wanted == "auto" and not torch.cuda.is_available() and torch.backends.mps.is_available():
        explain_mps()
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")
