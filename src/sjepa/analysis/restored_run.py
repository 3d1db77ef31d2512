"""A trained run restored from a checkpoint, to compute predictions and targets for any waveform."""

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.frames import describe_too_short, frame_count, frame_slice
from sjepa.device import Device, choose_device
from sjepa.errors import UserError
from sjepa.model.masked_prediction import draw_passes, predict_masked
from sjepa.runs.checkpoint import refuse_unfit
from sjepa.runs.folder import RunFolder
from sjepa.train.compute import autocast
from sjepa.train.run import Run


class Frames(NamedTuple):
    """Distributions over the components at consecutive frames, each (T, K)."""

    visible: Tensor
    """The cluster head on the encoder's output, with nothing masked, as in the paper's analysis."""
    masked: Tensor
    """The cluster head on the predictor's output, each frame masked once. Training supervises this path to the end."""
    target: Tensor
    plain: Tensor | None
    """The mixture's posterior at temperature 1, if the run's targets use another temperature or the argmax."""


class RestoredRun:
    """Encoder, predictor, cluster head and targets of a run, for inference only."""

    def __init__(self, folder: Path, device: Device = "cpu", step: int | None = None, seed: int = 0):
        run = RunFolder(folder)
        config = run.config()
        # Utterances have many lengths; compiling for each would take longer than it saves.
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, compile=False))
        self.run = Run.start(config, choose_device(device))
        with refuse_unfit(run):
            restored = self.run.restore(run, step)
        if not restored:
            raise UserError(f"{folder} has no checkpoint yet: wait for the first, or lower train.checkpoint_every")
        self.run.model.eval()
        self.run.targets.eval()
        self.seed = seed  # of the passes that mask frames
        self.requested_step = step  # None for the newest checkpoint
        # The predictor has a limited number of positions, so longer audio is processed in pieces.
        self.longest = config.longest_frames

    @property
    def components(self) -> int:
        return self.run.targets.components

    @property
    def about(self) -> dict[str, object]:
        """Facts about the checkpoint, as findings store them."""
        targets = self.run.targets
        return {
            "step": self.run.step,
            "phase": self.run.phase,
            "components": targets.components,
            "targets": targets.name,
            "temperature": targets.temperature,
            "hard": targets.hard,
            "active_layer": self.run.active_layer,
        }

    def __call__(self, samples: np.ndarray) -> Iterator[Frames]:
        """Yield the distributions of a waveform (float32, 16 kHz) in pieces that cover all frames."""
        for clean in self.pieces(samples):
            yield self.distributions(clean)

    def targets(self, samples: np.ndarray) -> Tensor:
        """Only the targets of all frames of a waveform: (T, K)."""
        return torch.cat([self.compute_target(clean)[0] for clean in self.pieces(samples)])

    def pieces(self, samples: np.ndarray) -> Iterator[Tensor]:
        """Cut a waveform into pieces (1, N) for which the predictor has positions."""
        total = frame_count(len(samples))
        if not total:
            raise UserError(describe_too_short(len(samples)))
        edges = np.linspace(0, total, -(-total // self.longest) + 1).round().astype(int)
        for first, last in pairwise(edges):
            piece = samples[frame_slice(first, last)]
            yield torch.from_numpy(piece)[None].to(self.run.device)

    @torch.inference_mode()
    def distributions(self, clean: Tensor) -> Frames:
        model, mask = self.run.model, self.run.config.mask
        with autocast(self.run.config, self.run.device):
            visible = torch.softmax(model.head(model.encoder(clean).last).float(), -1)[0]
            passes = torch.from_numpy(draw_passes(len(visible), mask.ratio, mask.span, self.seed)).to(clean.device)
            logits = predict_masked(model.encoder, model.predictor, model.head, clean, passes)
        return Frames(visible, torch.softmax(logits.float(), -1), *self.compute_target(clean))

    @torch.inference_mode()
    def compute_target(self, clean: Tensor) -> tuple[Tensor, Tensor | None]:
        """The target of a piece, and the mixture's posterior at temperature 1 if it differs."""
        targets = self.run.targets
        with autocast(self.run.config, self.run.device):
            features = targets.frame_features(clean, self.run.active_layer)
            target = targets(features)[0][0]
            differs = targets.kind.has_posteriors and (targets.hard or targets.temperature != 1.0)
            return target, targets.codebook.posterior(targets.projection(features))[0] if differs else None


def entropy_bits(distributions: Tensor) -> np.ndarray:
    """H = -sum p log2 p of each frame: (T, K) -> (T,)."""
    p = distributions.double()
    return (-torch.xlogy(p, p).sum(-1) / np.log(2)).clamp(min=0).cpu().numpy()
