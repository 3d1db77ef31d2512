"""Predictions of the predictor at every frame: several passes mask each frame exactly once.

Without a mask, the cluster head reads the output of the encoder, and the predictor is not used. Here every frame is
predicted from the frames around it, as in training.
"""

import math

import numpy as np
import torch
from torch import Tensor

from sjepa.model.encoder import EncoderNetwork
from sjepa.model.predictor import ClusterHead, Predictor


def draw_passes(frames: int, ratio: float, span: int, seed: int) -> np.ndarray:
    """Draw masks (P, T) for several passes, True at masked frames. Every frame is masked in exactly one pass.

    The frames are cut into spans of the length used in training, from a random offset. Spans are assigned to passes at
    random. The number of passes keeps the masked share of each near that of training: two for a ratio of 0.65, four
    for 0.3. The masks depend only on the number of frames and the seed.
    """
    generator = np.random.default_rng((seed, frames))
    passes = min(frames, max(2, math.ceil(1 / ratio) if ratio > 0 else 2))
    span = max(1, min(span, frames // passes))  # no pass masks all of a short utterance
    number = (np.arange(frames) + generator.integers(span)) // span
    dealt = np.empty(number[-1] + 1, dtype=int)
    dealt[generator.permutation(len(dealt))] = np.arange(len(dealt)) % passes
    return dealt[number] == np.arange(passes)[:, None]


@torch.inference_mode()
def predict_masked(
    encoder: EncoderNetwork, predictor: Predictor, head: ClusterHead, clean: Tensor, masks: Tensor
) -> Tensor:
    """Return the logits (T, K) of one utterance (1, N): for each frame, those of the pass in `masks` that masks it."""
    features = encoder.convolve(clean)  # masks come after the front end, so all passes share it
    z = encoder.transform(features.expand(len(masks), -1, -1), mask=masks).last
    logits = head(predictor(z, masks))  # (P, T, K)
    masked_in = masks.int().argmax(0)
    return logits[masked_in, torch.arange(masks.shape[1], device=logits.device)]
