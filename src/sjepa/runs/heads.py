"""Predictor and cluster head of a run, which its exported encoder lacks."""

from pathlib import Path

import torch
from torch import Tensor, nn

from sjepa.config import load_toml
from sjepa.errors import UserError
from sjepa.model.predictor import ClusterHead, Predictor
from sjepa.runs.checkpoint import load_sound, steps_saved


class Saved:
    """The checkpoint of a run that was written with its encoder."""

    def __init__(self, run: Path, encoder: nn.Module | None):
        if not (run / "config.toml").is_file() or not steps_saved(run):
            raise UserError(
                f"{run} is not a run with checkpoints, and only those have a cluster head: `sjepa pretrain` makes one; "
                "units of k-means (`sjepa units --units kmeans`) need none"
            )
        self.run = run
        exported = encoder.state_dict() if encoder is not None else {}
        for parts, _ in load_sound(run):  # while one is written, the encoder is that of the one before
            self.weights = parts["model"]
            trained = self.part("encoder.")
            if exported.keys() == trained.keys() and all(torch.equal(exported[n].cpu(), t) for n, t in trained.items()):
                return
        raise UserError(
            f"{run}: its encoder is that of no checkpoint; is it being written just now, or was it replaced?"
        )

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in self.weights.items() if name.startswith(prefix)}

    def head(self) -> ClusterHead:
        components, hidden_size = self.weights["head.output.weight"].shape
        head = ClusterHead(hidden_size, components)
        head.load_state_dict(self.part("head."))
        return head.eval().requires_grad_(False)

    def predictor(self) -> Predictor:
        hidden_size = self.weights["head.output.weight"].shape[1]
        predictor = Predictor(hidden_size, load_toml(self.run / "config.toml").predictor)
        predictor.load_state_dict(self.part("predictor."))
        return predictor.eval().requires_grad_(False)
