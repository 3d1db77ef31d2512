"""Load the mixture, the cluster head and the predictor of a run from its encoder folder or its checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.model.encoder_folder import find_encoder_files
from sjepa.model.formats import fingerprint, select_part
from sjepa.model.predictor import Predictor
from sjepa.runs.checkpoint import load_valid, refuse_unfit
from sjepa.runs.folder import RunFolder
from sjepa.runs.locate import find_encoder, find_run
from sjepa.targets.clusters import Clusters, ClustersInfo, clusters_from_parts
from sjepa.targets.kinds import KINDS
from sjepa.targets.layer import LayerChoice

if TYPE_CHECKING:
    from sjepa.config import Config


def load_clusters(source: Path, encoder: nn.Module) -> Clusters:
    """Load mixture and head of an encoder from its folder, or else from a checkpoint of its run."""
    file = find_encoder_files(find_encoder(source)).clusters
    run = find_run(source) or RunFolder(source)
    if file.is_file():
        try:
            return read_own_clusters(file, encoder)
        except UserError:
            if not run.checkpoint_steps:
                raise
    if run.exists and run.checkpoint_steps:
        return RunHeads(run.path, encoder).clusters()
    if run.exists:
        return read_codebook(run)
    raise UserError(
        f"{source} has no mixture and no cluster head: it has no {file.name} and is not a run with checkpoints. "
        "`sjepa pretrain` makes runs, and `sjepa export --to hf` includes both. K-means units "
        "(`sjepa units --units kmeans`) need neither"
    )


def read_own_clusters(file: Path, encoder: nn.Module) -> Clusters:
    """Load the clusters of an encoder folder. Raise UserError if they belong to another encoder."""
    clusters = Clusters.load(file)
    if clusters.info.encoder != fingerprint(encoder):
        raise UserError(
            f"{file} belongs to other weights: is another process writing the folder, or was a file replaced?"
        )
    return clusters


def restore_clusters(run: RunFolder, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Clusters:
    """Build mixture and head from the contents of a checkpoint."""
    config = run.config()
    with refuse_unfit(run):
        layer = LayerChoice(config.layer)
        layer.load(dict(state))
        info = make_clusters_info(config, state["phase"], layer.active, state["step"])
        return Clusters(info, clusters_from_parts(parts["model"], parts["targets"], info))


def make_clusters_info(config: "Config", phase: int, layer: int | None, step: int) -> ClustersInfo:
    """Describe the targets of a phase. `same` means the targets of the previous phase."""
    settings = config.phases[config.fitted_phase(phase) - 1]
    assert settings.targets != "same"
    kind = KINDS[settings.targets]
    return ClustersInfo(
        settings.targets,
        layer if kind.reads_encoder else None,
        phase,
        step,
        settings.centred,
        settings.temperature,
        kind.is_hard(settings.hard),
        config.mfcc,
        encoder="",
    )


def read_codebook(run: RunFolder) -> Clusters:
    """Load the newest mixture of a run without checkpoints."""
    found = [file for n in range(len(run.config().phases), 0, -1) if (file := run.codebook(n)).is_file()]
    if not found:
        raise UserError(
            f"{run} has neither a checkpoint nor the mixture of a phase: `sjepa pretrain --out {run}` makes them"
        )
    return Clusters.load(found[0])


class RunHeads:
    """Mixture, cluster head and predictor from the checkpoint that belongs to an encoder."""

    def __init__(self, path: Path, encoder: nn.Module | None):
        self.run = RunFolder(path)
        if not self.run.exists or not self.run.checkpoint_steps:
            raise UserError(f"{path} is not a run with checkpoints, so it has no predictor: `sjepa pretrain` makes one")
        exported = encoder.state_dict() if encoder is not None else {}
        # While a checkpoint is written, the encoder may belong to the previous one.
        for parts, state in load_valid(self.run):
            self.parts, self.state = parts, state
            self.weights = parts.get("model", {})
            trained = select_part(self.weights, "encoder.")
            if exported.keys() == trained.keys() and all(is_same_weight(exported[n], t) for n, t in trained.items()):
                return
        raise UserError(
            f"{path}: its encoder belongs to no checkpoint; is another process writing it, or was it replaced?"
        )

    def clusters(self) -> Clusters:
        return restore_clusters(self.run, self.parts, self.state)

    def predictor(self) -> Predictor:
        """Load the predictor of the checkpoint."""
        with refuse_unfit(self.run):
            hidden_size = self.weights["head.output.weight"].shape[1]
            predictor = Predictor(hidden_size, self.run.config().predictor)
            predictor.load_state_dict(select_part(self.weights, "predictor."))
        return predictor.eval().requires_grad_(False)


def is_same_weight(exported: Tensor, trained: Tensor) -> bool:
    """Return whether an exported weight, perhaps in half precision, equals the weight of a checkpoint."""
    return torch.equal(exported.cpu(), trained.to(exported.dtype))
