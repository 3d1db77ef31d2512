"""The reference set: utterances drawn once, on which every effective rank of a run is measured.

Ranks measured on whatever batch is at hand differ by its speakers and its crop length, not only by the encoder. The set
is part of every checkpoint, so it stays the same when a run continues, whatever the number of processes.
"""

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE, BadAudioError
from sjepa.data.loader import BatchReader
from sjepa.data.sampler import BatchPlan
from sjepa.errors import UserError

LONGEST = round(2.5 * SAMPLE_RATE)  # samples of an utterance
SPARE = 4  # times as many utterances are drawn as are wanted, because some may be damaged
STREAM = 7  # keeps these draws apart from those of batches


def draw_reference_set(reader: BatchReader, plan: BatchPlan, utterances: int) -> Tensor:
    """Crops of one length, int16 (B, N), of utterances of the first epoch, which has corpora by weight.

    The length is 2.5 s, or that of the shortest of the longest `utterances` if these are shorter.
    """
    available = np.flatnonzero(plan.choose_buckets(0) >= 0)
    lengths = reader.corpus.length[available]
    wanted = min(utterances, len(available))
    samples = min(LONGEST, int(np.partition(lengths, -wanted)[-wanted]))
    long_enough = available[lengths >= samples]
    generator = np.random.default_rng((reader.seed, STREAM))
    drawn = generator.choice(long_enough, min(SPARE * wanted, len(long_enough)), replace=False)
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
        raise UserError(f"none of {len(drawn)} utterances drawn for the effective ranks can be read: {reason}")
    return torch.from_numpy(np.stack(crops))
