"""A run as one of its checkpoints left it: predictions and targets of any waveform, nothing masked or learned."""

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sjepa.device import Device, choose_device
from sjepa.errors import UserError
from sjepa.model.frontend import RECEPTIVE_FIELD, STRIDE, frame_count
from sjepa.progress import say
from sjepa.runs.checkpoint import refuse_unfit
from sjepa.runs.folder import RunFolder
from sjepa.train.compute import autocast
from sjepa.train.run import Run

HeadInput = Literal["encoder", "predictor"]


class Frames(NamedTuple):
    """Distributions over the components at consecutive frames, each (T, K)."""

    predictor: Tensor
    target: Tensor
    plain: Tensor | None
    """The mixture's posterior at temperature 1, where the run's targets are softer or its argmax."""


class Restored:
    """Encoder, cluster head and targets of a run, for looking at."""

    def __init__(
        self, folder: Path, device: Device = "cpu", head_input: HeadInput = "encoder", step: int | None = None
    ):
        run, place = RunFolder(folder), choose_device(device)
        config = run.config()
        # Utterances have many lengths; compiling for each would take longer than it saves.
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, compile=False))
        self.run = Run.start(config, place)
        with refuse_unfit(run):
            restored = self.run.restore(run, say, step)
        if not restored:
            raise UserError(f"{folder} has no checkpoint yet: wait for the first, or lower train.checkpoint_every")
        self.run.model.eval()
        self.run.targets.eval()
        self.run.targets.online = False  # an online mixture would learn from what it is shown
        self.head_input = head_input
        # The predictor knows so many positions, and attention over hours does not fit: longer audio goes in pieces.
        longest = round(config.batches.max_seconds * 50)
        self.longest = min(longest, config.predictor.positions) if head_input == "predictor" else longest

    @property
    def components(self) -> int:
        return self.run.targets.components

    @property
    def about(self) -> dict[str, object]:
        """What the distributions are of, as findings tell it."""
        targets = self.run.targets
        return {
            "step": self.run.step,
            "phase": self.run.phase,
            "components": targets.components,
            "targets": targets.name,
            "temperature": targets.temperature,
            "hard": targets.hard,
            "active_layer": self.run.active_layer,
            "head_input": self.head_input,
        }

    def __call__(self, samples: np.ndarray) -> Iterator[Frames]:
        """Distributions of a waveform (float32, 16 kHz), piece by piece; frames of all pieces tile the utterance."""
        total = frame_count(len(samples))
        if not total:
            raise UserError(f"{len(samples)} samples are too few: a frame needs {RECEPTIVE_FIELD} (25 ms)")
        edges = np.linspace(0, total, -(-total // self.longest) + 1).round().astype(int)
        for first, last in pairwise(edges):
            piece = samples[first * STRIDE : (last - 1) * STRIDE + RECEPTIVE_FIELD]
            yield self.distributions(torch.from_numpy(piece)[None].to(self.run.device))

    @torch.inference_mode()
    def distributions(self, clean: Tensor) -> Frames:
        model, targets = self.run.model, self.run.targets
        with autocast(self.run.config, self.run.device):
            z = model.encoder(clean).last
            if self.head_input == "predictor":
                z = model.predictor(z, torch.zeros(z.shape[:2], dtype=torch.bool, device=z.device))
            predictor = torch.softmax(model.head(z).float(), -1)[0]
            features = targets.frame_features(clean, self.run.active_layer)
            target = targets(features)[0][0]
            differs = targets.kind.has_posteriors and (targets.hard or targets.temperature != 1.0)
            plain = targets.codebook.posterior(targets.projection(features))[0] if differs else None
        return Frames(predictor, target, plain)


def entropy_bits(distributions: Tensor) -> np.ndarray:
    """H = -sum p log2 p of each frame: (T, K) -> (T,)."""
    p = distributions.double()
    return (-torch.xlogy(p, p).sum(-1) / np.log(2)).clamp(min=0).cpu().numpy()
