"""Metrics of a run: sums on the device, the log, and the speed."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from sjepa import distributed
from sjepa.errors import UserError
from sjepa.memory import peak_memory_gb
from sjepa.runs.events import DEAD_SHARE
from sjepa.runs.folder import RunFolder
from sjepa.torch_private import count_compiled_graphs
from sjepa.train.loss import SUMS

STEP = ("gradient_norm", "steps", "skipped")
PARTS = ("frames", "occupancy", "kl_encoder")  # sums that each rank holds in part


class Meter:
    """Sums since the last logged line. They stay on the device until the next line, so that no step waits for them."""

    def __init__(self, components: int, device: torch.device):
        # This rank's part of the loss and of SUMS.
        self.frames = torch.zeros(1 + len(SUMS), dtype=torch.float64, device=device)
        self.steps = torch.zeros(len(STEP), dtype=torch.float64, device=device)  # the same on every rank
        self.occupancy = torch.zeros(components, dtype=torch.float64, device=device)
        self.kl_encoder = torch.zeros((), dtype=torch.float64, device=device)  # at masked frames, if it is in the loss
        self.bad_in_row = torch.zeros((), dtype=torch.int64, device=device)
        self.worst_in_row = torch.zeros((), dtype=torch.int64, device=device)
        self.cropped = torch.zeros(2, dtype=torch.float64)  # seconds left out by crops, and in total; on the host

    def add(self, sums: Tensor, occupancy: Tensor, loss: Tensor, gradient_norm: Tensor, finite: Tensor) -> None:
        """Add the sums of a step. A step without a finite gradient counts as skipped."""
        good = finite.double()
        self.frames += torch.where(finite, torch.cat([loss.detach()[None], sums]).double(), 0.0)
        self.occupancy += torch.where(finite, occupancy.double(), 0.0)
        self.steps += torch.stack([torch.where(finite, gradient_norm.double(), 0.0), good, 1.0 - good])
        self.bad_in_row.copy_(torch.where(finite, 0, self.bad_in_row + 1))
        self.worst_in_row.copy_(torch.maximum(self.worst_in_row, self.bad_in_row))

    def add_encoder(self, kl: Tensor, finite: Tensor) -> None:
        """Add the KL of the encoder's own predictions at masked frames."""
        self.kl_encoder += torch.where(finite, kl.detach().double(), 0.0)

    def add_crop(self, cropped: float, available: float) -> None:
        self.cropped += torch.tensor([cropped, available], dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint: sums over ranks, and the values that are equal on all ranks."""
        shared = {name: distributed.sum_over_ranks(getattr(self, name).clone()) for name in PARTS}
        return shared | {name: getattr(self, name) for name in ("steps", "bad_in_row", "worst_in_row", "cropped")}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore from a checkpoint. The main rank takes the sums of all ranks."""
        for name, tensor in state.items():
            if name not in PARTS or distributed.is_main():
                getattr(self, name).copy_(tensor)

    def read(self) -> dict[str, Any]:
        """Return the means over all ranks since the last call, and reset. The host waits for the device only here."""
        shared = distributed.sum_over_ranks(torch.cat([self.frames, self.kl_encoder[None], self.occupancy])).cpu()
        values = dict(zip(("loss", *SUMS, "kl_encoder"), shared.tolist(), strict=False))
        step = dict(zip(STEP, self.steps.tolist(), strict=True))
        occupancy = shared[2 + len(SUMS) :]
        worst = int(self.worst_in_row)
        cropped, available = self.cropped.tolist()
        for tensor in (self.frames, self.kl_encoder, self.steps, self.occupancy, self.worst_in_row, self.cropped):
            tensor.zero_()
        steps, masked, visible = (
            max(step["steps"], 1),
            max(values["frames_masked"], 1),
            max(values["frames_visible"], 1),
        )
        share = occupancy / occupancy.sum().clamp(min=1e-12)
        counted = bool(occupancy.sum() > 0)  # False if every step was skipped
        dead = torch.nonzero(share < DEAD_SHARE / len(share)).flatten().tolist() if counted else []
        return {
            "loss": values["loss"] / steps,
            "kl_masked": values["kl_masked"] / masked,
            "kl_visible": values["kl_visible"] / visible,
            "kl_encoder": values["kl_encoder"] / masked or None,
            "accuracy_masked": values["correct_masked"] / masked,
            "accuracy_visible": values["correct_visible"] / visible,
            "target_entropy": values["target_entropy"] / (masked + visible),
            "predictor_entropy": values["predictor_entropy"] / masked,
            "target_perplexity": math.exp(-float(torch.xlogy(share, share).sum())),
            "dead_components": len(dead),
            "gradient_norm": step["gradient_norm"] / steps,
            "skipped_steps": int(step["skipped"]),
            "bad_in_row": worst,
            "crop_loss": cropped / max(available, 1e-9),
            "dead": dead,
            "share": [float(f"{value:.3g}") for value in share.tolist()],
        }


class Log:
    """Write metrics.jsonl, and its numbers to TensorBoard and Weights & Biases, on the main rank."""

    def __init__(self, folder: RunFolder, keep_bytes: int, step: int, wandb_project: str = ""):
        """Continue the log after `keep_bytes`. Lines after the last checkpoint of a stopped run are written again."""
        self.boards: list[Callable[[dict[str, float], int], None]] = []
        self.closing = ExitStack()
        if not distributed.is_main():
            return
        self.file = self.closing.enter_context(folder.log.open("a+b"))
        self.file.truncate(min(keep_bytes, self.file.seek(0, os.SEEK_END)))
        self.open_tensorboard(folder, step)
        if wandb_project:
            self.open_wandb(folder, wandb_project)

    def open_tensorboard(self, folder: RunFolder, step: int) -> None:
        """Write events for TensorBoard if it is installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        board = SummaryWriter(str(folder.tensorboard), purge_step=step or None)
        self.closing.callback(board.close)

        def add(scalars: dict[str, float], step: int) -> None:
            for name, value in scalars.items():
                board.add_scalar(name, value, step)

        self.boards.append(add)

    def open_wandb(self, folder: RunFolder, project: str) -> None:
        """Log to a Weights & Biases project. With WANDB_MODE=offline, the log stays in the run folder."""
        try:
            import wandb
        except ImportError as error:
            raise UserError("train.wandb needs wandb: pip install 'sjepa[wandb]'") from error
        identity = hashlib.sha256(f"{folder.path.resolve()} {folder.facts.get('started')}".encode()).hexdigest()[:16]
        run = wandb.init(
            project=project, id=identity, name=folder.name, dir=str(folder), config=folder.settings, resume="allow"
        )
        self.closing.callback(run.finish)
        self.boards.append(lambda scalars, step: run.log(scalars, step=step))

    @property
    def bytes(self) -> int:
        return self.file.seek(0, os.SEEK_END) if distributed.is_main() else 0

    def write(self, event: str, step: int, **values: Any) -> None:
        """Write an event as one line, and its numbers to the boards."""
        if not distributed.is_main():
            return
        self.file.write((json.dumps({"event": event, "step": step} | values) + "\n").encode())
        self.file.flush()
        scalars = select_scalars(event, values)
        for add in self.boards:
            add(scalars, step)

    def close(self) -> None:
        self.closing.close()


def select_scalars(event: str, values: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an event by the names that TensorBoard and Weights & Biases show."""
    scalars: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            scalars[f"{event}/{name}"] = value
        elif name in ("effective_ranks", "smoothed"):
            tag = "measured" if name == "effective_ranks" else name
            scalars |= {f"effective_rank/{tag}_{layer}": rank for layer, rank in enumerate(value)}
        elif name == "speed":
            scalars |= {f"speed/{key}": each for key, each in value.items() if isinstance(each, int | float)}
        elif name == "rank_speed":
            scalars |= {f"speed/slowest_rank_{key}": max(each) for key, each in value.items()}
    return scalars


def time_product(device: torch.device) -> float:
    """Return the milliseconds of a fixed product of matrices. It takes longer on a slow or shared device."""
    cuda = device.type == "cuda"
    size, kind = (4096, torch.bfloat16) if cuda else (512, torch.float32)
    matrix = torch.ones(size, size, device=device, dtype=kind)
    matrix @ matrix  # the first product after other work may take longer
    if not cuda:
        began = time.perf_counter()
        matrix @ matrix
        return 1e3 * (time.perf_counter() - began)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    matrix @ matrix
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


class Speed:
    """Speed, waiting time and memory since the last line."""

    def __init__(self, device: torch.device):
        self.device = device
        self.step_ends = torch.cuda.Event() if device.type == "cuda" else None
        self.restart()

    def restart(self) -> None:
        self.began, self.waited, self.audio = time.perf_counter(), 0.0, 0.0

    def count_wait(self, asked: float) -> None:
        """Count the wait for a batch. On a GPU it counts only if the last step has ended: else only the host waited."""
        if self.step_ends is None or self.step_ends.query():
            self.waited += time.perf_counter() - asked

    def mark_launch(self) -> None:
        """Note that a step was launched."""
        if self.step_ends is not None:
            self.step_ends.record()

    def read(self) -> dict[str, Any]:
        """Return the figures of this interval, and reset. With several ranks, include those by which ranks differ.

        Their time per step is the same, because they wait for each other.
        """
        elapsed = max(1e-9, time.perf_counter() - self.began)
        memory = torch.cuda.max_memory_reserved() / 2**30 if self.device.type == "cuda" else peak_memory_gb()
        values: dict[str, Any] = {
            "audio_per_second": self.audio / elapsed,
            "waiting": self.waited / elapsed,
            "memory_gb": memory,
            "compiled": count_compiled_graphs(),
            "seconds": elapsed,
        }
        if distributed.world_size() > 1:
            found = distributed.gather_objects((values["waiting"], time_product(self.device)))
            waiting, product = zip(*found, strict=True)
            values["ranks"] = {"waiting": list(waiting), "product_ms": list(product)}
            values["waiting"] = max(waiting)
        self.restart()
        return values
