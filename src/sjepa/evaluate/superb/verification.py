"""Speaker verification: an x-vector trained to classify speakers, and trials of two utterances."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.errors import UserError
from sjepa.evaluate.superb.corpora.voxceleb import Trial
from sjepa.evaluate.superb.records import Label, Utterance
from sjepa.evaluate.superb.task import Task

WIDTH, POOLED = 512, 1500
CONTEXTS = ((5, 1), (3, 2), (3, 3), (1, 1), (1, 1))  # frames and dilation of each layer
CONTEXT = sum((frames - 1) * dilation for frames, dilation in CONTEXTS)  # frames that the layers consume
SCALE, MARGIN = 30.0, 0.4
CLIP = 1000.0


class SpeakerHead(nn.Module):
    """An x-vector: five layers over time, mean and deviation over frames, two linear layers.

    In training, it returns the cosines with every speaker's vector. In evaluation, it returns the normalised output of
    the first linear layer.
    """

    def __init__(self, dimension: int, speakers: int):
        super().__init__()
        self.projection = nn.Linear(dimension, WIDTH)
        outputs = [*itertools.repeat(WIDTH, len(CONTEXTS) - 1), POOLED]
        self.layers = nn.ModuleList(
            nn.Linear(WIDTH * frames, size) for (frames, _), size in zip(CONTEXTS, outputs, strict=True)
        )
        self.vector = nn.Linear(2 * POOLED, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.speakers = nn.Parameter(nn.init.xavier_normal_(torch.empty(WIDTH, speakers)))

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        if int(frames.min()) < CONTEXT + 2:
            raise UserError(f"an utterance has {int(frames.min())} frames of speech; an x-vector needs {CONTEXT + 2}")
        x = self.projection(x)
        for layer, (size, dilation) in zip(self.layers, CONTEXTS, strict=True):
            x = F.relu(layer(stack_context(x, size, dilation)))
        # In training, s3prl includes one frame of padding if there is any. It tests one utterance at a time.
        counts = (frames - CONTEXT + (1 if self.training else 0)).clamp(max=x.shape[1])
        vector = F.relu(self.vector(pool_statistics(x, counts)))
        if not self.training:
            return F.normalize(vector, dim=-1)
        return F.normalize(F.relu(self.output(vector)), dim=1) @ F.normalize(self.speakers, dim=0)


def stack_context(x: Tensor, frames: int, dilation: int) -> Tensor:
    """Concatenate each frame with the frames that follow it: (B, T, D) -> (B, T', frames · D)."""
    length = x.shape[1] - (frames - 1) * dilation
    return torch.cat([x[:, place * dilation : place * dilation + length] for place in range(frames)], dim=2)


def pool_statistics(x: Tensor, counts: Tensor) -> Tensor:
    """Return mean and deviation over the first `counts` frames of each utterance: (B, T, D) -> (B, 2 D)."""
    pooled = [
        torch.cat([part.mean(0), part.std(0)])
        for part in (row[:count] for row, count in zip(x, counts.tolist(), strict=True))
    ]
    return torch.stack(pooled)


@dataclass(frozen=True)
class VerificationTask(Task):
    """AM-softmax over the training speakers. Dev and test are trials, scored by the cosine of two vectors."""

    trials: dict[str, list[Trial]] = field(kw_only=True, repr=False)
    """Trials of the parts `dev` and `test`, which may be the same."""
    names: list[str] = field(init=False)
    """The training speakers."""

    def __post_init__(self) -> None:
        names = sorted({str(u.label[0]) for fold in self.folds for u in fold.train})
        if len(names) < 2:
            raise UserError(f"{self.folds[0].name}: training has a single speaker, so there is nothing to learn")
        object.__setattr__(self, "names", names)

    @property
    def clip(self) -> float:
        return CLIP

    def optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr)

    def head(self, dimension: int) -> nn.Module:
        return SpeakerHead(dimension, len(self.names))

    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor:
        """Return the cross-entropy of scaled cosines, with a margin subtracted from the correct speaker's."""
        wanted = torch.tensor([self.names.index(label[0]) for label in labels], device=outputs.device)
        lowered = outputs - MARGIN * F.one_hot(wanted, outputs.shape[1])
        return F.cross_entropy(SCALE * lowered, wanted)

    def predict(self, outputs: Tensor, frames: Tensor) -> list[np.ndarray]:
        return list(outputs.float().cpu().numpy())

    def answers(self) -> list[list[tuple[int, str, str]]]:
        return [[(int(t.same), t.first, t.second) for t in trials] for trials in self.trials.values()]

    def score_trials(
        self, predictions: Sequence[np.ndarray], utterances: Sequence[Utterance]
    ) -> tuple[list[Trial], np.ndarray]:
        """Return the trials of some utterances, and the cosine of each."""
        places = {utterance.name: place for place, utterance in enumerate(utterances)}
        part = "test" if utterances[0].name in {trial.first for trial in self.trials["test"]} else "dev"
        trials = self.trials[part]
        vectors = np.stack(predictions)
        firsts, seconds = ([places[getattr(t, name)] for t in trials] for name in ("first", "second"))
        return trials, np.einsum("td,td->t", vectors[firsts], vectors[seconds])

    def score_part(self, predictions: Sequence[np.ndarray], utterances: Sequence[Utterance]) -> dict[str, float]:
        trials, scores = self.score_trials(predictions, utterances)
        return self.score(scores.tolist(), [str(int(trial.same)) for trial in trials])

    def listing(self, predictions: Sequence[np.ndarray], utterances: Sequence[Utterance]) -> str:
        """Return lines of two names, the cosine, and 1 for the same speaker."""
        rows = zip(*self.score_trials(predictions, utterances), strict=True)
        return "".join(f"{t.first} {t.second}\t{score:.6f}\t{int(t.same)}\n" for t, score in rows)

    def submitted_files(
        self, predictions: Sequence[np.ndarray], utterances: Sequence[Utterance], fold: int
    ) -> Mapping[str, str | bytes]:
        if self.submission is None:
            return {}
        rows = zip(*self.score_trials(predictions, utterances), strict=True)
        (file,) = self.submission.places
        return {file: "".join(f"{hyphenate(t.first)}_{hyphenate(t.second)} {score}\n" for t, score in rows)}


def hyphenate(name: str) -> str:
    """Convert `id10270/VIDEO/00001.wav` to `id10270-VIDEO-00001`."""
    return "-".join(name.split("/")[-3:]).split(".")[0]
