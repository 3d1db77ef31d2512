"""Libri2Mix as Kaldi data directories: mixtures of two speakers, with the turns of each."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import numpy as np

from sjepa.audio.frames import STRIDE
from sjepa.audio.io import SAMPLE_RATE
from sjepa.errors import UserError
from sjepa.evaluate.superb.records import Fold, Utterance, find_folder, require_audio
from sjepa.files import read_text

CHUNK = 2000  # frames per input, 40 s
SPEAKERS = 2
SHORTEST = 2  # frames; the first frame of the encoder needs 400 samples
PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class Turn:
    """A speaker's turn in a recording, in seconds."""

    speaker: str
    start: float
    end: float


def read_libri2mix(root: Path) -> tuple[list[Fold], dict[str, list[Turn]]]:
    """Read chunks of the mixtures of `train`, `dev` and `test`, and the turns of every test recording.

    Each part is a Kaldi data directory: `wav.scp`, `segments`, `utt2spk` and `reco2dur`, as LibriMix's
    `prepare_diarization.py` writes them.
    """
    parts = []
    for part in PARTS:
        utterances, turns = read_part(find_folder(root, part, f"data/{part}"))
        parts.append(utterances)
    return [Fold("Libri2Mix", *parts)], turns


def read_part(folder: Path) -> tuple[list[Utterance], dict[str, list[Turn]]]:
    recordings = read_table(folder / "wav.scp", 2)
    speakers = read_table(folder / "utt2spk", 2)
    durations = read_table(folder / "reco2dur", 2)
    check_file_names(recordings, folder / "wav.scp")
    turns: dict[str, list[Turn]] = {name: [] for name in recordings}
    for name, (recording, start, end) in read_table(folder / "segments", 4).items():
        if name not in speakers:
            raise UserError(f"{folder / 'utt2spk'} does not have {name}, which segments has")
        if recording not in turns:
            raise UserError(f"{folder / 'wav.scp'} does not have {recording}, which segments has")
        turns[recording].append(Turn(speakers[name][0], parse_seconds(start, folder), parse_seconds(end, folder)))
    paths = {name: folder / path for name, (path,) in recordings.items()}
    require_audio(list(paths.values()), str(folder / "wav.scp"))
    utterances = []
    for name, path in paths.items():
        if name not in durations:
            raise UserError(f"{folder / 'reco2dur'} does not have {name}, which wav.scp has")
        frames = int(parse_seconds(durations[name][0], folder) * SAMPLE_RATE / STRIDE)
        voices = sorted({turn.speaker for turn in turns[name]})
        if len(voices) > SPEAKERS:
            raise UserError(f"{folder / 'segments'}: {name} has {len(voices)} speakers; this task is for {SPEAKERS}")
        for first in range(0, frames, CHUNK):
            last = min(first + CHUNK, frames)
            if last - first < SHORTEST:
                continue
            label = write_activity(make_activity(turns[name], voices, first, last))
            utterances.append(Utterance(name, path, label, start=first * STRIDE, samples=(last - first) * STRIDE))
    return utterances, turns


def check_file_names(names: Iterable[str], file: Path) -> None:
    """Raise UserError if a recording's name cannot name the file that is submitted for it."""
    for name in names:
        if name in (".", "..") or "\0" in name or PureWindowsPath(name).name != name:
            raise UserError(f"{file}: {name!r} is not a plain file name, which the name of a recording must be")


def read_table(file: Path, columns: int) -> dict[str, list[str]]:
    """Read lines of a name and its values."""
    if not file.is_file():
        raise UserError(f"there is no {file}: a Kaldi data directory has wav.scp, segments, utt2spk and reco2dur")
    found = {}
    for line_number, line in enumerate(read_text(file).splitlines(), 1):
        fields = line.split(None, columns - 1)
        if fields and len(fields) != columns:
            raise UserError(f"{file} line {line_number}: {line.strip()!r} does not have {columns} columns")
        if fields and fields[-1].endswith("|"):
            raise UserError(f"{file} line {line_number}: commands are not supported; replace {fields[-1]!r} by a file")
        if fields:
            found[fields[0]] = [field.strip() for field in fields[1:]]
    return found


def parse_seconds(text: str, folder: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{folder}: {text!r} is not a time in seconds") from None


def make_activity(turns: list[Turn], voices: list[str], first: int, last: int) -> np.ndarray:
    """Return whether each speaker is active at each frame of a chunk: (frames, speakers)."""
    active = np.zeros((last - first, SPEAKERS), bool)
    for turn in turns:
        begin, end = (int(np.rint(time * SAMPLE_RATE / STRIDE)) for time in (turn.start, turn.end))
        active[max(begin - first, 0) : max(end - first, 0), voices.index(turn.speaker)] = True
    return active


def write_activity(active: np.ndarray) -> str:
    """Format the number of frames and the active runs of each speaker: `2000: 0-125 300-420 / 90-400`."""
    speakers = []
    for column in active.T:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], column.astype(np.int8), [0]])))
        speakers.append(" ".join(f"{a}-{b}" for a, b in zip(edges[::2], edges[1::2], strict=True)))
    return f"{len(active)}: {' / '.join(speakers)}"


def read_activity(label: str) -> np.ndarray:
    """Parse the output of `write_activity`."""
    frames, _, rest = label.partition(":")
    active = np.zeros((int(frames), SPEAKERS), bool)
    for speaker, runs in enumerate(rest.split("/")):
        for run in runs.split():
            begin, end = run.split("-")
            active[int(begin) : int(end), speaker] = True
    return active
