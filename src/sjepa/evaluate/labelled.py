"""Utterances with speaker, gender, chapter and phone labels, for probes and units."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sjepa.errors import UserError
from sjepa.evaluate.probes import frame_labels
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.records import Fold, Utterance, json_lines, require_audio, split_by_speaker
from sjepa.fields import NUMBER, TEXT, Kind, check_fields, optional

LABELS = "labels.jsonl"
SEGMENTS = optional(
    Kind(
        "a list of [start, end, label] in seconds",
        lambda value: (
            isinstance(value, list)
            and all(
                isinstance(part, list)
                and len(part) == 3
                and all(map(NUMBER.accepts, part[:2]))
                and TEXT.accepts(part[2])
                for part in value
            )
        ),
    )
)
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

    def transcript(self) -> str:
        """The text in capital letters, apostrophes and single spaces, as ASR's characters spell it."""
        kept = "".join(c for c in str(self.utterance.label).upper() if c.isalpha() or c in "' ")
        return " ".join(kept.encode("ascii", "ignore").decode().split())

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
    if (data / LABELS).is_file():
        kind = "synthetic" if (data / "corpus.json").is_file() else "labelled"  # the synthesiser leaves its settings
        return f"{kind} speech ({data.resolve().name})"
    return f"LibriSpeech {subset}"


def read_labelled(data: Path, subset: str = "dev-clean", *, phones: bool = True) -> list[Labelled]:
    """A LibriSpeech subset, or any corpus with `labels.jsonl`; one without phones is refused if they are needed."""
    if not data.is_dir():
        raise UserError(f"there is no folder {data}")
    listed = (data / LABELS).is_file()
    corpus = read_list(data) if listed else read_librispeech(data, subset)
    if phones and not any(item.phones or item.segments for item in corpus):
        list_missing = f"{data / LABELS} has no phones: a list of [start, end, phone] in seconds for each utterance"
        raise UserError(list_missing if listed else librispeech.phones_missing(data, subset))
    return corpus


def read_list(data: Path) -> list[Labelled]:
    """What `labels.jsonl` lists: `path`, and those of `id`, `text`, `speaker`, `gender`, `phones`, `words` it has."""
    file = data / LABELS
    try:
        rows = list(json_lines(file))
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not text: {error}") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("path"), str) or "\0" in row["path"]:
            raise UserError(f"{file} line {number}: there is no path")
        check_fields(row, {"phones": SEGMENTS, "words": SEGMENTS}, f"{file} line {number}")
    require_audio([data / row["path"] for row in rows], str(file))
    return [read_row(data, row) for row in rows]


def listed_fold(data: Path, spell: Callable[[Labelled], str]) -> Fold:
    """A corpus with `labels.jsonl` split by speaker, each utterance labelled as `spell` has it."""
    spelled = [replace(item.utterance, label=spell(item)) for item in read_list(data)]
    utterances = [utterance for utterance in spelled if utterance.label]
    if not utterances:
        raise UserError(f"{data / LABELS} has no text that can be spelled in letters")
    return split_by_speaker(utterances, corpus_name(data, ""), str(data / LABELS))


def read_row(data: Path, row: dict[str, Any]) -> Labelled:
    """A line of `labels.jsonl`; an utterance without an id has its path for a name."""
    name = str(row.get("id") or Path(row["path"]).with_suffix("").as_posix())
    text, speaker, gender = (str(row.get(key) or "") for key in ("text", "speaker", "gender"))
    segments, words = ([tuple(part) for part in row.get(key) or ()] for key in ("phones", "words"))
    return Labelled(Utterance(name, data / row["path"], text, speaker), gender, segments=segments, words=words)


def read_librispeech(data: Path, subset: str) -> list[Labelled]:
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
