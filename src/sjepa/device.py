"""Where to compute."""

from typing import Literal

import torch

from sjepa.errors import UserError

Device = Literal["auto", "cpu", "cuda"]


def choose_device(wanted: str) -> torch.device:
    """The device of that name; auto takes a GPU where there is one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: there is no GPU that torch can use; auto and cpu do without")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")
