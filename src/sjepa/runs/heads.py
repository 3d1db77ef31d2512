"""The mixture, the cluster head and the predictor of a run: from its encoder folder, or from its checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.model.formats import fingerprint
from sjepa.model.predictor import Predictor
from sjepa.runs.checkpoint import load_sound, refuse_unfit
from sjepa.runs.folder import RunFolder
from sjepa.runs.locate import find_encoder, find_run
from sjepa.targets.clusters import CLUSTERS_FILE, Clusters, ClustersInfo, clusters_from_parts, read_clusters
from sjepa.targets.kinds import KINDS
from sjepa.targets.layer import LayerChoice

if TYPE_CHECKING:
    from sjepa.config import Config


def load_clusters(source: Path, encoder: nn.Module) -> Clusters:
    """Mixture and head of an encoder: from its folder, else from the checkpoint of the run that wrote it."""
    place = find_encoder(source)
    file = (place.parent if place.is_file() else place) / CLUSTERS_FILE
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
        f"{source} has no mixture and no cluster head: it has no {CLUSTERS_FILE} and is not a run with checkpoints. "
        "`sjepa pretrain` makes runs, `sjepa export --to hf` takes both along; units of k-means "
        "(`sjepa units --units kmeans`) need none"
    )


def read_own_clusters(file: Path, encoder: nn.Module) -> Clusters:
    """The clusters of a folder, which must belong to the encoder in it."""
    clusters = Clusters.load(file)
    if clusters.info.encoder != fingerprint(encoder):
        raise UserError(
            f"{file} belongs to other weights: is the folder being written just now, or was a file replaced?"
        )
    return clusters


def clusters_at(run: RunFolder, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Clusters:
    """Mixture and head as a checkpoint holds them."""
    config = run.config()
    with refuse_unfit(run):
        layer = LayerChoice(config.layer)
        layer.smoothed = state["ranks"]
        info = describe_phase(config, state["phase"], layer.active, state["step"])
        return Clusters(info, clusters_from_parts(parts["model"], parts["targets"], info))


def describe_phase(config: "Config", phase: int, layer: int | None, step: int) -> ClustersInfo:
    """What the targets of a phase apply to; `same` stands for those of the phase before."""
    number = phase
    while config.phases[number - 1].targets == "same":
        number -= 1
    settings = config.phases[number - 1]
    assert settings.targets != "same"
    kind = KINDS[settings.targets]
    return ClustersInfo(
        settings.targets,
        layer if kind.reads_encoder else None,
        phase,
        step,
        settings.centred,
        settings.temperature,
        settings.hard or not kind.has_posteriors,
        config.mfcc,
        encoder="",
    )


def read_codebook(run: RunFolder) -> Clusters:
    """The newest mixture of a run without checkpoints; what an older file does not say comes from config and log."""
    config = run.config()
    found = [n for n in range(len(config.phases), 0, -1) if run.codebook(n).is_file()]
    if not found:
        raise UserError(f"{run} has neither a checkpoint nor the mixture of a phase: `sjepa pretrain` makes them")
    file = run.codebook(found[0])
    info, tensors = read_clusters(file)
    if info is None:
        layer = config.layer.choice
        if layer is None and run.log.is_file():
            known = [event.get("active_layer") for event in run.events() if event.get("phase") == found[0]]
            layer = next((active for active in reversed(known) if active is not None), None)
        info = describe_phase(config, found[0], layer, run.step)
        reads, settings = KINDS[info.targets].reads_encoder, config.phases[found[0] - 1]
        if (reads and info.layer is None) or (settings.dimensions and "projection.directions" not in tensors):
            info = None
    return Clusters.build(info, tensors, file)


class RunHeads:
    """What is trained beside an encoder, from the checkpoint of a run that was written with it."""

    def __init__(self, path: Path, encoder: nn.Module | None):
        self.run = RunFolder(path)
        if not self.run.exists or not self.run.checkpoint_steps:
            raise UserError(
                f"{path} is not a run with checkpoints, and only those have a predictor: `sjepa pretrain` makes one"
            )
        exported = encoder.state_dict() if encoder is not None else {}
        for parts, state in load_sound(self.run):  # while one is written, the encoder is that of the one before
            self.parts, self.state = parts, state
            self.weights = parts.get("model", {})
            trained = self.part("encoder.")
            if exported.keys() == trained.keys() and all(equal(exported[n], t) for n, t in trained.items()):
                return
        raise UserError(
            f"{path}: its encoder is that of no checkpoint; is it being written just now, or was it replaced?"
        )

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in self.weights.items() if name.startswith(prefix)}

    def clusters(self) -> Clusters:
        return clusters_at(self.run, self.parts, self.state)

    def predictor(self) -> Predictor:
        with refuse_unfit(self.run):
            hidden_size = self.weights["head.output.weight"].shape[1]
            predictor = Predictor(hidden_size, self.run.config().predictor)
            predictor.load_state_dict(self.part("predictor."))
        return predictor.eval().requires_grad_(False)


def equal(exported: Tensor, trained: Tensor) -> bool:
    """Whether a weight is a checkpoint's, perhaps in half precision."""
    return torch.equal(exported.cpu(), trained.to(exported.dtype))
