"""Predictor and cluster head of a run, which its encoder folder lacks."""

from pathlib import Path

import torch
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.model.predictor import ClusterHead, Predictor
from sjepa.runs.checkpoint import load_sound, refuse_unfit
from sjepa.runs.folder import RunFolder


class RunHeads:
    """Predictor and cluster head from the checkpoint of a run that was written with its encoder."""

    def __init__(self, path: Path, encoder: nn.Module | None):
        self.run = RunFolder(path)
        if not self.run.exists or not self.run.checkpoint_steps:
            raise UserError(
                f"{path} is not a run with checkpoints, and only those have a cluster head: `sjepa pretrain` makes "
                "one; units of k-means (`sjepa units --units kmeans`) need none"
            )
        exported = encoder.state_dict() if encoder is not None else {}
        for parts, _ in load_sound(self.run):  # while one is written, the encoder is that of the one before
            self.weights = parts.get("model", {})
            trained = self.part("encoder.")
            if exported.keys() == trained.keys() and all(torch.equal(exported[n].cpu(), t) for n, t in trained.items()):
                return
        raise UserError(
            f"{path}: its encoder is that of no checkpoint; is it being written just now, or was it replaced?"
        )

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in self.weights.items() if name.startswith(prefix)}

    def cluster_head(self) -> ClusterHead:
        with refuse_unfit(self.run):
            components, hidden_size = self.weights["head.output.weight"].shape
            head = ClusterHead(hidden_size, components)
            head.load_state_dict(self.part("head."))
        return head.eval().requires_grad_(False)

    def predictor(self) -> Predictor:
        with refuse_unfit(self.run):
            hidden_size = self.weights["head.output.weight"].shape[1]
            predictor = Predictor(hidden_size, self.run.config().predictor)
            predictor.load_state_dict(self.part("predictor."))
        return predictor.eval().requires_grad_(False)
