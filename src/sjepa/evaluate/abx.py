"""Phoneme ABX through fastabx: are two tokens of one phone nearer to each other than to one of another phone?"""

import importlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sjepa.errors import UserError
from sjepa.evaluate.superb.librispeech import SILENCES

GROUP, ACROSS = 10, 5  # tokens a cell, speakers of X a cell, as in the ZeroSpeech challenge


def fastabx() -> Any:
    try:
        return importlib.import_module("fastabx")
    except ImportError as error:
        raise UserError("ABX needs fastabx, and that Python 3.12: pip install 'sjepa[abx]'") from error


def abx_errors(
    features: Sequence[np.ndarray],
    phones: Sequence[np.ndarray],
    speakers: Sequence[str],
    seed: int = 0,
    frequency: float = 50,
) -> dict[str, float]:
    """Error in percent, within and across speakers, by angular distance along the best time alignment."""
    measure = fastabx().zerospeech_abx
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = ["#file onset offset #phone prev-phone next-phone speaker"]
        for index, (frames, labels, speaker) in enumerate(zip(features, phones, speakers, strict=True)):
            np.save(folder / f"{index}.npy", frames.astype(np.float32))
            lines += [f"{index} {token} {speaker}" for token in tokens(labels, frequency)]
        (folder / "phones.item").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return {
            f"abx_{mode}": 100.0
            * measure(
                folder / "phones.item",
                folder,
                max_size_group=GROUP,
                max_x_across=ACROSS,
                speaker=mode,
                context="any",
                distance="angular",
                frequency=frequency,
                feature_maker=load,
                extension=".npy",
                seed=seed,
            )
            for mode in ("within", "across")
        }


def tokens(labels: np.ndarray, frequency: float = 50) -> Iterator[str]:
    """Onset, offset, phone and its neighbours for each run of frames with one label; silence is no token."""
    runs = []
    for label, group in itertools.groupby(enumerate(labels), key=lambda pair: pair[1]):
        places = [place for place, _ in group]
        runs.append((places[0] / frequency, (places[-1] + 1) / frequency, str(label)))
    names = ["SIL", *(label for _, _, label in runs), "SIL"]
    for (onset, offset, label), before, after in zip(runs, names, names[2:], strict=False):
        if label not in SILENCES:
            yield f"{onset:.2f} {offset:.2f} {label} {before} {after}"


def load(path: str | Path) -> Tensor:
    return torch.from_numpy(np.load(path, allow_pickle=False))
