"""Utterances with speaker, gender, chapter and phone labels, for probes and units."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sjepa.errors import UserError
from sjepa.evaluate.probes import frame_labels
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.records import Utterance, json_lines, require_audio

TOLERANCE = 10  # labels: alignments may end a tenth of a second before or after the audio


@dataclass(frozen=True)
class Labelled:
    """An utterance and what is known of it; a property that a corpus lacks is empty."""

    utterance: Utterance
    gender: str = ""
    chapter: str = ""
    phones: Sequence[str] = ()
    """100 labels a second."""
    segments: Sequence[tuple[float, float, str]] = ()
    """Or phones with start and end in seconds."""
    words: Sequence[tuple[float, float, str]] = ()
    """Words likewise, where their times are known."""

    @property
    def speaker(self) -> str:
        return self.utterance.speaker

    def frame_phones(self, frames: int) -> np.ndarray:
        """The phone at each frame's centre, 320 t + 200 samples: label 2 t + 1 of the 100 a second."""
        if self.segments:
            return np.array(frame_labels(self.segments, frames))
        if not self.phones:
            raise UserError(f"audio without labels: {self.utterance.name} has no phones")
        if abs(len(self.phones) - 2 * frames) > TOLERANCE:
            raise UserError(
                f"{self.utterance.name} has {len(self.phones)} phone labels; its {frames / 50:.2f} s of audio need "
                f"{2 * frames}, 100 a second"
            )
        places = np.minimum(2 * np.arange(frames) + 1, len(self.phones) - 1)
        return np.array(self.phones)[places]


def corpus_name(data: Path, subset: str) -> str:
    """How results call the corpus."""
    if (data / "labels.jsonl").is_file():
        return f"synthetic speech ({data.resolve().name})"
    return f"LibriSpeech {subset}"


def read_labelled(data: Path, subset: str = "dev-clean") -> list[Labelled]:
    """A LibriSpeech subset with its phones, or a synthetic corpus with `labels.jsonl`."""
    if not data.is_dir():
        raise UserError(f"there is no folder {data}")
    if (data / "labels.jsonl").is_file():
        rows = list(json_lines(data / "labels.jsonl"))
        require_audio([data / row["path"] for row in rows], str(data / "labels.jsonl"))
        return [synthetic(data, row) for row in rows]
    try:
        librispeech.subset_folder(data, subset)
    except UserError as error:
        raise UserError(
            f"{error}, and no labels.jsonl: a labelled corpus is LibriSpeech, or runs/demo/corpus"
        ) from None
    utterances = librispeech.read_subset(data, subset)
    sexes, phones = librispeech.speaker_sex(data), librispeech.aligned_phones(data)
    return [
        Labelled(u, sexes.get(u.speaker, ""), f"{u.speaker}-{u.path.parent.name}", phones.get(u.name, ()))
        for u in utterances
    ]


def synthetic(data: Path, row: dict[str, Any]) -> Labelled:
    utterance = Utterance(row["id"], data / row["path"], row["text"], row["speaker"])
    segments, words = ([tuple(part) for part in row.get(key, ())] for key in ("phones", "words"))
    return Labelled(utterance, row["gender"], segments=segments, words=words)
