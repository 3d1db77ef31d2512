"""Run the encoder on utterances of different lengths, as one padded batch."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sjepa.audio.frames import frame_count
from sjepa.model.encoder import EncoderNetwork


def encode(
    encoder: EncoderNetwork,
    utterances: Sequence[np.ndarray],
    device: torch.device,
    take: Callable[[list[Tensor]], Tensor],
    until: int | None = None,
) -> list[Tensor]:
    """Return `take(hidden_states)` for each utterance, (..., T, D) without padding.

    Batching does not change the result. `until` is the last layer that `take` needs.
    """
    padded = pad_sequence([torch.from_numpy(samples) for samples in utterances], batch_first=True).to(device)
    counts = [len(samples) for samples in utterances]
    # Equal lengths need no mask. The result then equals that of the plain encoder exactly.
    lengths = None if len(set(counts)) == 1 else torch.tensor(counts, device=device)
    batch = take(encoder(padded, lengths, until=until).hidden_states)
    return [x[..., : frame_count(count), :] for x, count in zip(batch, counts, strict=True)]
