"""Phoneme ABX error, computed by fastabx."""

import importlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.frames import FRAMES_PER_SECOND
from sjepa.counts import format_count
from sjepa.errors import UserError
from sjepa.evaluate.superb.librispeech import SILENCES
from sjepa.progress import say

HEADER = "#file onset offset #phone prev-phone next-phone speaker"
GROUP, ACROSS = 10, 5  # tokens per cell and speakers of X per cell, as in the ZeroSpeech challenge


def import_fastabx() -> Any:
    try:
        return importlib.import_module("fastabx")
    except ImportError as error:
        raise UserError("ABX needs fastabx, which needs Python 3.12: pip install 'sjepa[abx]'") from error


def abx_errors(
    features: Sequence[np.ndarray],
    phones: Sequence[np.ndarray],
    speakers: Sequence[str],
    seed: int = 0,
    frequency: float = FRAMES_PER_SECOND,
) -> dict[str, float]:
    """Return the error in percent within and across speakers, with the angular distance and time alignment.

    Utterances without a speaker are left out.
    """
    import_fastabx()
    require_speakers(speakers)
    if unknown := sum(not speaker for speaker in speakers):
        say(f"ABX leaves out {format_count(unknown, 'utterance')} without a speaker")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, frames in enumerate(features):
            np.save(folder / f"{index}.npy", frames.astype(np.float32))
        lines = [HEADER, *item_lines(phones, speakers, frequency)]
        (folder / "phones.item").write_text("\n".join(lines) + "\n", encoding="utf-8")
        errors = zerospeech_errors(folder / "phones.item", folder, "any", frequency, seed)
        return {f"abx_{mode}": error for mode, error in errors.items()}


def item_errors(item: Path, features: dict[str, np.ndarray], seed: int, frequency: float) -> dict[str, float]:
    """Return the triphone ABX error in percent within and across speakers, for a ZeroSpeech item file.

    A, B and X have the same context. `features` maps file names to frames (T, D).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, frames in features.items():
            np.save(folder / f"{file}.npy", frames.astype(np.float32))
        errors = zerospeech_errors(item, folder, "within", frequency, seed)
        return {f"abx_triphone_{mode}": error for mode, error in errors.items()}


def zerospeech_errors(item: Path, folder: Path, context: str, frequency: float, seed: int) -> dict[str, float]:
    """Return the error in percent within and across speakers, as in the ZeroSpeech challenge."""
    measure = import_fastabx().zerospeech_abx
    return {
        mode: 100.0
        * measure(
            item,
            folder,
            max_size_group=GROUP,
            max_x_across=ACROSS,
            speaker=mode,
            context=context,
            distance="angular",
            frequency=int(frequency) if frequency == int(frequency) else frequency,
            feature_maker=load_features,
            extension=".npy",
            seed=seed,
        )
        for mode in ("within", "across")
    }


def read_item_files(item: Path) -> list[str]:
    """Return the distinct files in a ZeroSpeech item file. Raise UserError if the format is wrong."""
    if not item.is_file():
        raise UserError(f"there is no item file {item}")
    files: dict[str, None] = {}
    with item.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if number == 1 or not fields:
                if number == 1 and fields[:1] != HEADER.split()[:1]:
                    raise UserError(f"{item} is not an item file: its first line should be {HEADER!r}")
                continue
            if len(fields) != len(HEADER.split()) or not (is_number(fields[1]) and is_number(fields[2])):
                raise UserError(f"{item} line {number}: not {HEADER!r}: {line.strip()[:60]}")
            files[fields[0]] = None
    if not files:
        raise UserError(f"{item} names no files")
    return list(files)


def is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


def require_speakers(speakers: Iterable[str]) -> None:
    """Raise UserError if no utterance has a speaker."""
    if not any(speakers):
        raise UserError("ABX compares phones within and across speakers: no utterance has a speaker")


def item_lines(phones: Sequence[np.ndarray], speakers: Sequence[str], frequency: float) -> Iterator[str]:
    """Yield a line of an item file for each phone of the utterances with a speaker. Utterance `i` is file `i`.

    Phones and speakers become numbers, because names may contain spaces.
    """
    known = [index for index, speaker in enumerate(speakers) if speaker]
    tokens = {index: list(phone_tokens(phones[index], frequency)) for index in known}
    phone_numbers = number_names("p", (label for found in tokens.values() for token in found for label in token[2:]))
    speaker_numbers = number_names("s", (speakers[index] for index in known))
    for index, found in tokens.items():
        owner = speaker_numbers[speakers[index]]
        for onset, offset, *labels in found:
            yield " ".join([str(index), onset, offset, *(phone_numbers[x] for x in labels), owner])


def number_names(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Map names to numbers with a prefix. fastabx would read bare numbers as integers."""
    return {name: f"{prefix}{number}" for number, name in enumerate(dict.fromkeys(names))}


def phone_tokens(labels: np.ndarray, frequency: float = FRAMES_PER_SECOND) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield onset, offset, phone and its neighbours for each run of frames with one label, except silence."""
    runs = []
    for label, group in itertools.groupby(enumerate(labels), key=lambda pair: pair[1]):
        places = [place for place, _ in group]
        runs.append((places[0] / frequency, (places[-1] + 1) / frequency, str(label)))
    names = ["SIL", *(label for _, _, label in runs), "SIL"]
    for (onset, offset, label), before, after in zip(runs, names, names[2:], strict=False):
        if label not in SILENCES:
            yield f"{onset:.2f}", f"{offset:.2f}", label, before, after


def load_features(path: str | Path) -> Tensor:
    return torch.from_numpy(np.load(path, allow_pickle=False))
