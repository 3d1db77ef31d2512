"""Utterances with speaker, gender, chapter and phone labels, for probes and units."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sjepa.audio.frames import FRAMES_PER_SECOND, frame_centres
from sjepa.audio.io import SAMPLE_RATE
from sjepa.data.corpus import list_audio
from sjepa.data.layouts import Item
from sjepa.data.layouts.fields import text_field
from sjepa.data.layouts.manifest import LABELS_FILE, read_stretch
from sjepa.data.storage import ByteRange
from sjepa.errors import UserError
from sjepa.evaluate.alignments import (
    Alignment,
    complete_alignment,
    cut_segments,
    find_alignment,
    frame_labels,
    read_alignments,
)
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.records import Utterance, read_json_lines, require_audio
from sjepa.evaluate.superb.user_corpus import (
    USER_LAYOUTS,
    corpus_label,
    is_user_corpus,
    make_utterance,
    read_items,
)
from sjepa.fields import NUMBER, TEXT, Kind, check_fields, optional
from sjepa.files import require_folder
from sjepa.progress import say

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
TOLERANCE = 10  # labels, 0.1 s: an alignment may end this much before or after the audio


class NoLabelsError(UserError):
    """A folder holds no corpus that has labels. It may still hold audio."""


@dataclass(frozen=True)
class LabelledUtterance:
    """An utterance and its labels. Labels that the corpus lacks are empty."""

    utterance: Utterance
    gender: str = ""
    chapter: str = ""
    phones: Sequence[str] = ()
    """100 labels per second."""
    segments: Sequence[tuple[float, float, str]] = ()
    """Alternatively, phones with start and end in seconds."""
    words: Sequence[tuple[float, float, str]] = ()
    """Words with start and end in seconds, if known."""

    @property
    def speaker(self) -> str:
        return self.utterance.speaker

    @property
    def has_phones(self) -> bool:
        return bool(self.phones or self.segments)

    def transcript(self) -> str:
        """Return the text in capital letters, apostrophes and single spaces: the characters of ASR."""
        kept = "".join(c for c in str(self.utterance.label).upper() if c.isalpha() or c in "' ")
        return " ".join(kept.encode("ascii", "ignore").decode().split())

    def frame_phones(self, frames: int, centres: np.ndarray | None = None) -> np.ndarray:
        """Return the phone at the centre of each frame. `centres` is in seconds, by default those of our encoder."""
        centres = frame_centres(frames) if centres is None else centres
        if self.segments:
            return np.array(frame_labels(self.segments, frames, centres))
        if not self.phones:
            raise UserError(f"{self.utterance.name} has no phone labels")
        seconds = frames * (centres[1] - centres[0] if frames > 1 else 1 / FRAMES_PER_SECOND)
        if abs(len(self.phones) - 100 * seconds) > TOLERANCE:
            raise UserError(
                f"{self.utterance.name} has {len(self.phones)} phone labels; its {seconds:.2f} s of audio need "
                f"{100 * seconds:.0f}, 100 per second"
            )
        places = np.minimum((100 * centres).astype(int), len(self.phones) - 1)
        return np.array(self.phones)[places]


def corpus_name(data: Path, subset: str) -> str:
    """Return the name of the corpus in results."""
    if (data / LABELS_FILE).is_file():
        kind = "synthetic" if (data / "corpus.json").is_file() else "labelled"  # the synthesiser writes its settings
        return f"{kind} speech ({data.resolve().name})"
    if is_user_layout(data, subset):
        return f"labelled speech ({corpus_label(data)})"
    return f"LibriSpeech {subset}"


def corpus_suffix(data: Path, subset: str) -> str:
    """Return the name of the user's own corpus for paths of results; nothing for LibriSpeech."""
    return corpus_label(data) if (data / LABELS_FILE).is_file() or is_user_layout(data, subset) else ""


def is_user_layout(data: Path, subset: str) -> bool:
    """Return whether a corpus is the user's own rather than LibriSpeech."""
    return is_user_corpus(data, subset, "LibriSpeech", f"LibriSpeech/{subset}")


def read_labelled(
    data: Path, subset: str = "dev-clean", *, phones: bool = True, alignments: Path | None = None
) -> list[LabelledUtterance]:
    """Read a LibriSpeech subset, a corpus with `labels.jsonl`, or any corpus that `sjepa index` reads.

    If `phones` is True, utterances without phones are dropped, and a corpus without phones is an error. With
    `alignments`, phones and words come from there, and utterances without an alignment are dropped.
    """
    if not (data.is_file() and is_user_layout(data, subset)):
        require_folder(data)
    if data.is_dir() and not any(data.iterdir()):
        raise UserError(f"the folder {data} is empty")
    listed = (data / LABELS_FILE).is_file()
    if not listed and is_user_layout(data, subset):
        corpus = [read_item(item) for item in read_items(data)]
    else:
        corpus = read_labels_file(data) if listed else read_librispeech(data, subset)
    if alignments is not None:
        corpus = align(corpus, alignments)
    if not phones:
        return corpus
    found = drop_without_phones(corpus)
    if not found:
        raise UserError(describe_missing_phones(data, subset, alignments))
    return found


def describe_missing_phones(data: Path, subset: str, alignments: Path | None) -> str:
    """Return where the phones of a corpus were looked for, for the message that there are none."""
    if alignments is not None:
        return f"{alignments} has no phones of these utterances"
    if (data / LABELS_FILE).is_file():
        return f"{data / LABELS_FILE} has no phones: a list of [start, end, phone] in seconds for each utterance"
    if is_user_layout(data, subset):
        return f"{data} has no phones: give --alignments, a folder of TextGrids, CTM files or tables"
    return librispeech.describe_missing_phones(data, subset)


def report_missing_phones(
    corpus: Sequence[LabelledUtterance], data: Path, subset: str, alignments: Path | None
) -> None:
    """Report that phone probes are skipped and what they need, if no utterance has phones."""
    if not any(item.has_phones for item in corpus):
        say(f"Skipping the phone probes: {describe_missing_phones(data, subset, alignments)}")


def drop_without_phones(corpus: Sequence[LabelledUtterance]) -> list[LabelledUtterance]:
    """Return the utterances with phones. Report how many others are left out, if any have phones."""
    found = [item for item in corpus if item.has_phones]
    if found and len(found) < len(corpus):
        say(f"{len(corpus) - len(found):,} of {len(corpus):,} utterances have no phones and are left out")
    return found


def read_unlabelled(folder: Path) -> list[LabelledUtterance]:
    """Read the audio files of a folder. All labels are empty."""
    return [LabelledUtterance(Utterance(path.stem, path, "")) for path in list_audio(folder)]


def read_item(item: Item) -> LabelledUtterance:
    """Convert an item of any corpus."""
    return LabelledUtterance(make_utterance(item, item.text), item.sex, item.chapter)


def align(corpus: Sequence[LabelledUtterance], place: Path) -> list[LabelledUtterance]:
    """Add alignments by utterance or recording name. Drop utterances without an alignment."""
    alignments = read_alignments(place)
    found = []
    for item in corpus:
        utterance = item.utterance
        own = find_alignment(alignments, [utterance.name, utterance.name.rpartition("/")[2]])
        if own is None:
            path = utterance.path.with_suffix("")
            names = ["/".join(path.parts[-depth:]) for depth in range(1, min(5, len(path.parts)))]
            own = find_alignment(alignments, names)
            if own is not None and (utterance.start or utterance.samples):  # times of the recording
                stretch = (utterance.start / SAMPLE_RATE, utterance.samples / SAMPLE_RATE or None)
                own = Alignment(cut_segments(own.phones, *stretch), cut_segments(own.words, *stretch))
        if own is not None:
            found.append(replace(item, phones=(), segments=own.phones, words=own.words))
    if not found:
        raise UserError(
            f"{place} has no alignment for any of the {len(corpus):,} utterances: it has {next(iter(alignments))!r}, "
            f"the corpus has {corpus[0].utterance.name!r}"
        )
    if len(found) < len(corpus):
        say(f"{len(corpus) - len(found):,} of {len(corpus):,} utterances have no alignment and are left out")
    return found


def read_labels_file(data: Path) -> list[LabelledUtterance]:
    """Read `labels.jsonl`: `path`, and optionally a stretch of the recording and labels.

    The stretch is `offset` and `duration`. The labels are `id`, `text`, `speaker`, `gender`, `phones` and `words`.
    """
    file = data / LABELS_FILE
    found = []
    for number, row in read_json_lines(file):
        if not isinstance(row.get("path"), str) or "\0" in row["path"]:
            raise UserError(f"{file} line {number}: there is no path")
        check_fields(row, {"phones": SEGMENTS, "words": SEGMENTS}, f"{file} line {number}")
        stretch = read_stretch(row)
        if isinstance(stretch, str):
            raise UserError(f"{file} line {number}: {stretch}")
        found.append(read_row(data, row, *stretch))
    require_audio([item.utterance.path for item in found], str(file))
    return found


def read_row(data: Path, row: dict[str, Any], offset: float, duration: float | None) -> LabelledUtterance:
    """Convert a line of `labels.jsonl`. The name is the id, or the path and offset if there is none."""
    path = Path(row["path"]).with_suffix("").as_posix()
    name = text_field(row, "id") or (f"{path}@{offset:g}" if offset else path)
    text, speaker, gender = (text_field(row, key) for key in ("text", "speaker", "sex"))
    segments, words = ([tuple(part) for part in row.get(key) or ()] for key in ("phones", "words"))
    own = complete_alignment(Alignment(segments, words), name)
    item = Item(ByteRange(str(data / row["path"])), name, offset, duration, speaker=speaker)
    return LabelledUtterance(make_utterance(item, text), gender, segments=own.phones, words=own.words)


def read_librispeech(data: Path, subset: str) -> list[LabelledUtterance]:
    try:
        librispeech.find_subset_folder(data, subset)
    except UserError as error:
        if suggestion := librispeech.suggest_subset(data):
            raise UserError(f"{error}{suggestion}") from None
        accepted = f"LibriSpeech, a folder with {LABELS_FILE} (such as runs/demo/corpus), {USER_LAYOUTS}"
        raise NoLabelsError(f"{error}; give {accepted}") from None
    utterances = librispeech.read_subset(data, subset, need_text=False)
    genders, phones = librispeech.read_speaker_sexes(data), librispeech.read_aligned_phones(data)
    return [
        LabelledUtterance(u, genders.get(u.speaker, ""), f"{u.speaker}-{u.path.parent.name}", phones.get(u.name, ()))
        for u in utterances
    ]
