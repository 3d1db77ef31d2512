"""Predictor and cluster head of a finished run, which its exported encoder lacks."""

from pathlib import Path

import torch
from torch import Tensor, nn

from sjepa.config import load_toml
from sjepa.errors import UserError
from sjepa.model.predictor import ClusterHead, Predictor
from sjepa.train.checkpoint import load_latest


class Finished:
    """The newest checkpoint of a run, if it is of the same training step as the encoder."""

    def __init__(self, run: Path, encoder: nn.Module | None):
        found = load_latest(run) if (run / "config.toml").is_file() else None
        if found is None:
            raise UserError(
                f"{run} is not a run with checkpoints, and only those have a cluster head: `sjepa pretrain` makes one; "
                "`sjepa units --units kmeans` needs none"
            )
        self.run, self.weights = run, found[0]["model"]
        exported, trained = encoder.state_dict() if encoder is not None else {}, self.part("encoder.")
        if exported.keys() != trained.keys() or any(not torch.equal(exported[n].cpu(), t) for n, t in trained.items()):
            raise UserError(
                f"{run}: its encoder is not that of its newest checkpoint; `sjepa pretrain --out {run}` finishes it"
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
