"""The reference set: utterances drawn once per run, on which all effective ranks are measured.

Effective ranks measured on the current batch would also depend on its speakers and its crop length. The set is part of
every checkpoint, so it stays the same when a run continues, with any number of processes.
"""

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE, BadAudioError
from sjepa.data.loader import BatchReader
from sjepa.data.sampler import BatchPlan
from sjepa.errors import UserError

LONGEST = round(2.5 * SAMPLE_RATE)  # samples of an utterance
SPARE = 4  # draw this many times the wanted number of utterances, because some may be damaged
STREAM = 7  # makes these draws independent of those of batches


def draw_reference_set(reader: BatchReader, plan: BatchPlan, utterances: int) -> Tensor:
    """Draw crops of equal length, int16 (B, N), from utterances of the first epoch, which has corpora by weight.

    The length is 2.5 s, or less if the corpus has fewer than `utterances` utterances of that length.
    """
    available = np.flatnonzero(plan.choose_buckets(0) >= 0)
    lengths = reader.corpus.length[available]
    wanted = min(utterances, len(available))
    samples = min(LONGEST, int(np.partition(lengths, -wanted)[-wanted]))
    long_enough = available[lengths >= samples]
    return draw_crops(reader, long_enough, samples, wanted)


def draw_crops(reader: BatchReader, utterances: np.ndarray, samples: int, wanted: int) -> Tensor:
    """Draw a crop of `samples` from each of up to `wanted` utterances: int16 (B, N). Damaged ones are replaced."""
    generator = np.random.default_rng((reader.seed, STREAM))
    drawn = generator.choice(utterances, min(SPARE * wanted, len(utterances)), replace=False)
    crops: list[np.ndarray] = []
    reason = ""
    for utterance in drawn.tolist():
        try:
            crops.append(reader.crop(utterance, samples, np.random.default_rng((reader.seed, STREAM, utterance))))
        except BadAudioError as error:
            reason = str(error)
        if len(crops) == wanted:
            break
    if not crops:
        raise UserError(f"cannot read any of the {len(drawn)} utterances drawn for measurements: {reason}")
    return torch.from_numpy(np.stack(crops))
