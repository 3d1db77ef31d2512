"""What the predictor says at every frame: each frame is masked exactly once, over several passes.

With nothing masked the cluster head reads the encoder's output, and the predictor, which training supervises, is not
used at all. Here every frame is predicted from the frames around it, as in training.
"""

import math

import numpy as np
import torch
from torch import Tensor

from sjepa.model.encoder import EncoderNetwork
from sjepa.model.predictor import ClusterHead, Predictor


def draw_passes(frames: int, ratio: float, span: int, seed: int) -> np.ndarray:
    """Masks (P, T) of several passes, True at masked frames: every frame is masked in exactly one of them.

    The frames are cut into spans of training's length from a random offset, and the spans are dealt out at random.
    There are as many passes as keep the masked share of each at most about training's: two for a ratio of 0.65, four
    for 0.3. The masks depend on the number of frames and the seed alone.
    """
    generator = np.random.default_rng((seed, frames))
    passes = min(frames, max(2, math.ceil(1 / ratio) if ratio > 0 else 2))
    span = max(1, min(span, frames // passes))  # so that no pass hides all of a short utterance
    number = (np.arange(frames) + generator.integers(span)) // span
    dealt = np.empty(number[-1] + 1, dtype=int)
    dealt[generator.permutation(len(dealt))] = np.arange(len(dealt)) % passes
    return dealt[number] == np.arange(passes)[:, None]


@torch.inference_mode()
def predict_masked(
    encoder: EncoderNetwork, predictor: Predictor, head: ClusterHead, clean: Tensor, masks: Tensor
) -> Tensor:
    """Logits (T, K) of one utterance (1, N): of each frame those of the pass in which it is masked, given (P, T)."""
    features = encoder.convolve(clean)  # masks come after the front end, so all passes share it
    z = encoder.transform(features.expand(len(masks), -1, -1), mask=masks).last
    logits = head(predictor(z, masks))  # (P, T, K)
    masked_in = masks.int().argmax(0)
    return logits[masked_in, torch.arange(masks.shape[1], device=logits.device)]
