"""Features without a network, for comparison: MFCC, MFCC with its neighbours, and log-mel energies."""

from functools import cache

import torch
from torch import Tensor

from sjepa.audio.frames import STRIDE
from sjepa.audio.mfcc import MfccConfig, add_context, log_mel, mfcc

CONTEXT = 5  # frames on each side of `mfcc+context`
MELS = 80
BASELINES = {
    "mfcc": MfccConfig().dimension,
    "mfcc+context": MfccConfig().dimension * (2 * CONTEXT + 1),
    "logmel": MELS,
}
"""Names and dimensions."""
# Rounded means and deviations of the features on LibriSpeech dev-clean. With unit variance, all encoders can use the
# same learning rate. Centring each utterance would remove all information from an average over its frames.
LOG_MEL_MEAN, LOG_MEL_DEVIATION = 13.7, 4.0
CEPSTRUM_0_MEAN, CEPSTRA_DEVIATIONS = 74.0, (16.0, 4.5, 2.0)  # cepstra, differences, second differences


def compute_baseline(name: str, waveform: Tensor) -> Tensor:
    """Return features with about unit variance on read speech: (1, samples) -> (1, T, D), a frame every 20 ms."""
    if name == "logmel":
        return (log_mel(waveform, MELS, STRIDE) - LOG_MEL_MEAN) / LOG_MEL_DEVIATION
    x = mfcc(waveform, MfccConfig())
    x[..., 0] -= CEPSTRUM_0_MEAN
    x = x / cepstra_deviations(x.device)
    return add_context(x, CONTEXT) if name == "mfcc+context" else x


@cache
def cepstra_deviations(device: torch.device) -> Tensor:
    return torch.tensor(CEPSTRA_DEVIATIONS, device=device).repeat_interleave(MfccConfig().cepstra)
