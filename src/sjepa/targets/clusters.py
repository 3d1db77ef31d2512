"""The mixture and the cluster head of an encoder, and the file that stores them.

Every encoder folder has a `clusters.safetensors`. It holds the mixture (or another codebook) of the phase in which the
encoder was written, its projection, and the cluster head. Its header describes the features that the mixture reads.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from sjepa.audio.mfcc import MfccConfig
from sjepa.bounds import check_bounds
from sjepa.errors import UserError
from sjepa.fields import FLAG, NUMBER, SURPRISES, TEXT, WHOLE, one_of, optional, require, shorten, table_of
from sjepa.files import save_tensors
from sjepa.model.encoder_folder import CLUSTERS_HEADER
from sjepa.model.formats import select_part
from sjepa.model.predictor import ClusterHead
from sjepa.targets.gmm import DiagonalGMM
from sjepa.targets.kinds import KINDS, TargetName
from sjepa.targets.projection import Projection

BATCH = 65_536  # frames per forward pass of the head
MIXTURE = ("weights", "means", "variances", "centre", "floor")
KINDS_OF_FIELDS = {
    "targets": one_of(*KINDS),
    "layer": optional(WHOLE),
    "phase": WHOLE,
    "step": WHOLE,
    "centred": FLAG,
    "temperature": NUMBER,
    "hard": FLAG,
    "mfcc": table_of(NUMBER),
    "encoder": TEXT,
}


@dataclass(frozen=True)
class ClustersInfo:
    """Origin of a mixture and a head, and the features that they read."""

    targets: TargetName
    """Kind of targets: the features of the mixture, and how it was fitted."""
    layer: int | None
    """Layer of the encoder that the mixture reads, from 0; None if it reads features of the audio."""
    phase: int
    """Phase of the targets."""
    step: int
    centred: bool
    """Whether the mean of each utterance is subtracted from its features first."""
    temperature: float
    """Temperature of the training targets. `mixture_posteriors` uses 1 by default."""
    hard: bool
    """Whether the training targets were the most likely component only."""
    mfcc: MfccConfig
    encoder: str
    """Fingerprint of the encoder that the file belongs to; empty if it belongs to none."""


class Clusters(nn.Module):
    """The mixture and the cluster head of an encoder. `encoder.clusters` is one.

    >>> from sjepa import Encoder
    >>> clusters = Encoder.from_pretrained("runs/mine").clusters
    >>> clusters.info.targets, clusters.components  # clusters.info.layer is the layer that the mixture reads
    ('online-gmm', 12)
    """

    head: ClusterHead

    def __init__(self, info: ClustersInfo, tensors: Mapping[str, Tensor]):
        super().__init__()
        self.info, self.kind = info, KINDS[info.targets]
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        self.mixture = DiagonalGMM(*tensors["means"].shape)
        self.mixture.load_state_dict({name: tensors[name] for name in MIXTURE})
        projected = "projection.directions" in tensors
        dimension, size = tensors["projection.directions"].shape if projected else (self.mixture.dimension, 0)
        self.projection = Projection(dimension, size)
        self.projection.load_state_dict(select_part(tensors, "projection."))
        self.features = None
        if not self.kind.reads_encoder:  # the encoder of the source is then not used
            self.features = self.kind.plain_features(info.mfcc)
            self.features.load_state_dict(select_part(tensors, "features."))
        count, hidden_size = tensors["head.output.weight"].shape
        self.head = ClusterHead(hidden_size, count)
        self.head.load_state_dict(select_part(tensors, "head."))
        self.eval().requires_grad_(False)

    @property
    def components(self) -> int:
        return self.mixture.components

    @property
    def hidden_state_index(self) -> int | None:
        """Index of the hidden state that the mixture reads, or None if it reads the audio."""
        return None if self.info.layer is None else self.info.layer + 1

    def mixture_features(self, samples: Tensor | None, hidden_state: Tensor | None) -> Tensor:
        """Return the features (T, D) of one utterance that the mixture reads.

        They come from `hidden_state` (T, D), whose index is `hidden_state_index`, or from `samples` (N,) if that is
        None.
        """
        if self.features is not None:
            assert samples is not None
            frames: Tensor = self.features(samples[None], None)[0]
        else:
            assert hidden_state is not None
            frames = hidden_state
        frames = frames.float()
        return frames - frames.mean(0) if self.info.centred else frames

    def mixture_posteriors(self, frames: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the posteriors (T, K) of the mixture for frames of `mixture_features`."""
        if not self.kind.has_posteriors:
            raise UserError(f"{self.info.targets} has no posteriors: its targets are the nearest code; use units")
        if temperature == 1.0:
            return self.mixture.posterior(self.projection(frames))
        return torch.softmax(self.mixture.log_joint(self.powers(frames)) / temperature, dim=1)

    def mixture_units(self, frames: Tensor) -> Tensor:
        """Return the most likely component (T,) for frames of `mixture_features`."""
        return torch.cat([self.mixture.log_joint(self.powers(part)).argmax(1) for part in frames.split(BATCH)])

    def head_posteriors(self, frames: Tensor) -> Tensor:
        """Return the distribution (T, K) of the cluster head for frames of the last layer of the encoder."""
        return torch.cat([self.head(part.float()).softmax(-1) for part in frames.split(BATCH)])

    def powers(self, frames: Tensor) -> Tensor:
        return self.mixture.powers(self.projection(frames))

    def save(self, path: Path, *, encoder: str, half: bool = False) -> None:
        """Write the file for the encoder with this fingerprint. `half` stores the head, not the mixture, in fp16."""
        tensors = {name.removeprefix("mixture."): tensor for name, tensor in self.state_dict().items()}
        if half:
            tensors = {name: t.half() if name.startswith("head.") else t for name, t in tensors.items()}
        save_clusters(path, tensors, dataclasses.replace(self.info, encoder=encoder))

    @classmethod
    def load(cls, path: Path) -> "Clusters":
        """Read a file. Raise UserError if header and tensors do not match."""
        info, tensors = read_clusters(path)
        try:
            return cls(info, tensors)
        except (RuntimeError, *SURPRISES) as error:  # torch raises RuntimeError for wrong shapes
            raise UserError(f"{path} does not hold a mixture and a head ({shorten(str(error))})") from error


def clusters_from_parts(
    model: Mapping[str, Tensor], targets: Mapping[str, Tensor], info: ClustersInfo
) -> dict[str, Tensor]:
    """Select the tensors of the file from the model and the targets of a checkpoint."""
    found = select_part(targets, "codebook.")
    kept = ("projection.",) if KINDS[info.targets].reads_encoder else ("projection.", "features.")
    found |= {name: tensor for name, tensor in targets.items() if name.startswith(kept)}
    return found | {name: tensor for name, tensor in model.items() if name.startswith("head.")}


def save_clusters(path: Path, tensors: Mapping[str, Tensor], info: ClustersInfo) -> None:
    save_tensors(path, tensors, metadata={CLUSTERS_HEADER: json.dumps(dataclasses.asdict(info))})


def read_clusters(path: Path) -> tuple[ClustersInfo, dict[str, Tensor]]:
    """Read header and tensors of a file. Raise UserError if it is not a file of clusters."""
    try:
        with safetensors.safe_open(path, "pt") as opened:
            header = (opened.metadata() or {}).get(CLUSTERS_HEADER)
        tensors = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if header is None:
        raise UserError(f"{path} has no header that describes its clusters: was it written by another program?")
    return parse_info(header, path), tensors


def parse_info(header: str, path: Path) -> ClustersInfo:
    """Parse the JSON header of a file. Raise UserError if it is invalid."""
    try:
        found: Any = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: its header is not JSON: {error}") from error
    where = f"{path}: its header"
    if not isinstance(found, dict):
        raise UserError(f"{where} should be an object, not {shorten(found)}")
    values = {name: require(found, name, kind, where) for name, kind in KINDS_OF_FIELDS.items()}
    try:
        settings: dict[str, Any] = {name: int(value) for name, value in values["mfcc"].items()}
        mfcc = MfccConfig(**settings)
        check_bounds(mfcc, "mfcc.")
    except (UserError, *SURPRISES) as error:
        raise UserError(f"{where} does not hold MFCC settings ({shorten(str(error))})") from error
    return ClustersInfo(**values | {"mfcc": mfcc})
