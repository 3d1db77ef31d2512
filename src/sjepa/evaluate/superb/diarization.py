"""Speaker diarization: which of two speakers is active at each frame."""

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sjepa.audio.frames import STRIDE
from sjepa.audio.io import SAMPLE_RATE
from sjepa.evaluate.superb.corpora.libri2mix import SPEAKERS, Turn, read_activity, write_activity
from sjepa.evaluate.superb.diarization_error import Turns, diarization_error_rate, frame_errors
from sjepa.evaluate.superb.records import Label, Utterance
from sjepa.evaluate.superb.task import Task
from sjepa.progress import say

WIDTH = 512


class DiarizationHead(nn.Module):
    """One LSTM layer, and a binary decision for each speaker at each frame.

    Labels have one frame more than features. As in s3prl, the last frame of the padded batch is repeated in training,
    which is padding for all utterances but the longest. In evaluation, s3prl has one utterance per batch. Here each
    utterance repeats its own last frame, so that batching does not change the result.
    """

    def __init__(self, dimension: int):
        super().__init__()
        self.recurrent = nn.LSTM(dimension, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, SPEAKERS)

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:  # (B, T, D) -> (B, T + 1, speakers)
        x = torch.cat([x, x[:, -1:]], dim=1)
        if not self.training:
            rows = torch.arange(len(x))
            x[rows, frames] = x[rows, frames - 1]
        x, _ = self.recurrent(x)
        return self.output(x)


@dataclass(frozen=True)
class DiarizationTask(Task):
    """Binary cross-entropy with the best permutation of the speakers."""

    turns: dict[str, list[Turn]] = field(kw_only=True, repr=False)
    """Turns of every test recording."""
    active: dict[Label, Tensor] = field(init=False, repr=False)
    """Speaker activity of each label, zeros and ones: (frames, speakers)."""

    def __post_init__(self) -> None:
        labels = {u.label for fold in self.folds for u in fold.utterances}
        found = {label: torch.from_numpy(read_activity(str(label)).astype(np.float32)) for label in labels}
        object.__setattr__(self, "active", found)

    def head(self, dimension: int) -> nn.Module:
        return DiarizationHead(dimension)

    def loss(self, outputs: Tensor, frames: Tensor, labels: Sequence[Label]) -> Tensor:
        wanted = [self.active[label].to(outputs.device) for label in labels]
        counts = torch.tensor([len(label) for label in wanted], device=outputs.device)
        outputs = resample_outputs(outputs, int(counts.max()))
        padded = nn.utils.rnn.pad_sequence(wanted, batch_first=True)
        inside = torch.arange(padded.shape[1], device=outputs.device) < counts[:, None]
        orders = [
            (F.binary_cross_entropy_with_logits(outputs, padded[..., list(order)], reduction="none").mean(2) * inside)
            for order in itertools.permutations(range(SPEAKERS))
        ]
        best = torch.stack([order.sum(1) for order in orders]).amin(0)
        return best.sum() / counts.sum()

    def weight(self, labels: Sequence[Label]) -> float:
        return float(sum(len(self.active[label]) for label in labels))

    def predict(self, outputs: Tensor, frames: Tensor) -> list[np.ndarray]:
        """Return probabilities, including the extra frame of the labels."""
        found = outputs.float().sigmoid().cpu().numpy()
        return [row[: count + 1] for row, count in zip(found, frames.tolist(), strict=True)]

    def answers(self) -> dict[str, list[tuple[str, float, float]]]:
        return {name: [(t.speaker, t.start, t.end) for t in turns] for name, turns in self.turns.items()}

    def match_speakers(self, prediction: np.ndarray, label: Label) -> tuple[np.ndarray, np.ndarray]:
        """Return the decisions for a chunk, and its label with the best permutation of the speakers."""
        active, probabilities = self.active[label], self.fit_to_label(prediction, label)
        orders = [active[:, list(order)] for order in itertools.permutations(range(SPEAKERS))]
        losses = [float(F.binary_cross_entropy(probabilities, order)) for order in orders]
        return (probabilities > 0.5).numpy(), orders[int(np.argmin(losses))].numpy() > 0.5

    def fit_to_label(self, prediction: np.ndarray, label: Label) -> Tensor:
        """Return the probabilities of a chunk at the frames of its label."""
        return resample_outputs(torch.from_numpy(prediction)[None], len(self.active[label]))[0]

    def score_part(self, predictions: Sequence[np.ndarray], utterances: Sequence[Utterance]) -> dict[str, float]:
        """Return frame-level scores averaged over chunks, and for test recordings also the error of dscore."""
        pairs = [frame_errors(*self.match_speakers(p, u.label)) for p, u in zip(predictions, utterances, strict=True)]
        errors, right = np.mean(pairs, axis=0)
        scores = {"frame_der": 100.0 * float(errors), "frame_accuracy": 100.0 * float(right)}
        if not all(u.name in self.turns for u in utterances):
            return scores
        references: dict[str, Turns] = {name: group_turns(turns) for name, turns in self.turns.items()}
        joined = self.join_chunks(predictions, utterances)
        return {"der": diarization_error_rate(joined, references, STRIDE / SAMPLE_RATE)} | scores

    def join_chunks(self, predictions: Sequence[np.ndarray], utterances: Sequence[Utterance]) -> dict[str, np.ndarray]:
        """Concatenate the probabilities of the chunks of each recording, at the frame rate of the labels."""
        chunks: dict[str, list[np.ndarray]] = {}
        for prediction, utterance in zip(predictions, utterances, strict=True):
            chunks.setdefault(utterance.name, []).append(self.fit_to_label(prediction, utterance.label).numpy())
        return {name: np.concatenate(parts) for name, parts in chunks.items()}

    def as_text(self, prediction: Any) -> str:
        if isinstance(prediction, str):
            return prediction
        return write_activity(prediction > 0.5)

    def submitted_files(
        self, predictions: Sequence[np.ndarray], utterances: Sequence[Utterance], fold: int
    ) -> Mapping[str, str | bytes]:
        if self.submission is None:
            return {}
        try:
            import h5py
        except ImportError:
            say("h5py is not installed: no sd files for the SUPERB leaderboard (pip install 'sjepa[superb]')")
            return {}
        (folder,) = self.submission.places
        files: dict[str, str | bytes] = {"frame_shift": f"{STRIDE}\n"}
        for name, found in self.join_chunks(predictions, utterances).items():
            memory = io.BytesIO()
            with h5py.File(memory, "w") as file:
                file.create_dataset("T_hat", data=found)
            files[f"{folder}/{name}.h5"] = memory.getvalue()
        return files


def group_turns(turns: Sequence[Turn]) -> dict[str, list[tuple[float, float]]]:
    """Group turns by speaker, rounded to hundredths of a second as in RTTM files."""
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in turns:
        start = round(turn.start, 2)
        found.setdefault(turn.speaker, []).append((start, start + round(turn.end - turn.start, 2)))
    return found


def resample_outputs(outputs: Tensor, frames: int) -> Tensor:
    """Adapt outputs to a number of frames: resample a different frame rate, otherwise truncate or repeat the end."""
    factor = frames / outputs.shape[1]
    if not 2 / 3 < factor < 1.5:
        places = (torch.arange(frames, device=outputs.device) / factor).long().clamp(max=outputs.shape[1] - 1)
        return outputs[:, places]
    missing = frames - outputs.shape[1]
    return torch.cat([outputs, outputs[:, -1:].expand(-1, missing, -1)], dim=1) if missing > 0 else outputs[:, :frames]
