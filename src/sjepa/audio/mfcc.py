"""MFCC with deltas by Kaldi's conventions, for a batch of waveforms at once.

With a 20 ms shift, frame t covers samples [320 t, 320 t + 400). The encoder's front end sees the same samples, so frame
counts and times agree without trimming.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE
from sjepa.bounds import SIZE, Bound

WINDOW = 400
FFT = 512
LIFTER = 22.0


@dataclass(frozen=True)
class MfccConfig:
    """MFCC features of phase 1."""

    shift_ms: Literal[10, 20] = 20
    """20 as in the paper. With 10, frames and deltas have 10 ms steps, and every second one is kept (HuBERT)."""
    cepstra: Annotated[int, SIZE] = 13
    """Cepstral coefficients, C0 included; deltas and delta-deltas triple them."""
    mels: Annotated[int, SIZE] = 23
    """Mel filters."""
    context: Annotated[int, Bound(0, 20, "it should lie between 0 and 20")] = 0
    """Frames on each side that are joined to each frame (not in the paper). Use it with
    `phase1.directions = "discriminant"`."""

    @property
    def dimension(self) -> int:
        return 3 * self.cepstra * (2 * self.context + 1)


@lru_cache
def mel_filters(mels: int, device: torch.device) -> Tensor:
    """Triangular filters on Kaldi's mel scale: (257, mels)."""

    def to_mel(hertz: Tensor) -> Tensor:
        return 1127.0 * torch.log1p(hertz / 700.0)

    bounds = to_mel(torch.tensor([20.0, SAMPLE_RATE / 2], dtype=torch.float64))
    edges = torch.linspace(float(bounds[0]), float(bounds[1]), mels + 2, dtype=torch.float64)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    mel = to_mel(torch.arange(FFT // 2 + 1, dtype=torch.float64) * SAMPLE_RATE / FFT)[:, None]
    filters = torch.minimum((mel - left) / (centre - left), (right - mel) / (right - centre)).clamp(min=0)
    filters[-1] = 0  # Kaldi leaves the Nyquist bin out
    return filters.float().to(device)


@lru_cache
def cosine_transform(mels: int, cepstra: int, device: torch.device) -> Tensor:
    """Orthonormal DCT-II and cepstral lifter in one matrix: (mels, cepstra)."""
    bins = torch.arange(mels, dtype=torch.float64)[:, None] + 0.5
    order = torch.arange(cepstra, dtype=torch.float64)
    matrix = math.sqrt(2.0 / mels) * torch.cos(math.pi / mels * bins * order)
    matrix[:, 0] = math.sqrt(1.0 / mels)
    return (matrix * (1.0 + 0.5 * LIFTER * torch.sin(math.pi * order / LIFTER))).float().to(device)


@lru_cache
def spectrum_matrix(device: torch.device) -> Tensor:
    """Matrix from a frame of 400 samples to its spectrum, real parts first, then imaginary parts: (400, 514).

    Mean removal, preemphasis, the povey window and the Fourier transform are all linear, so one matrix does all four.
    """
    identity = torch.eye(WINDOW, dtype=torch.float64)
    centred = identity - identity.mean(1, keepdim=True)
    # The first sample has no predecessor and is used in its place.
    emphasised = centred - 0.97 * torch.cat([centred[:, :1], centred[:, :-1]], dim=1)
    window = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64).pow(0.85)
    spectrum = torch.fft.rfft(emphasised * window, FFT)
    return torch.cat([spectrum.real, spectrum.imag], dim=1).float().to(device)


@lru_cache
def delta_filters(device: torch.device) -> Tensor:
    """Kaldi's filters for the features, their deltas and delta-deltas, over +-2 frames: (9, 3)."""
    first = torch.arange(-2.0, 3.0) / 10.0
    second = F.conv1d(F.pad(first.view(1, 1, 5), (4, 4)), first.flip(0).view(1, 1, 5)).view(9)
    return torch.stack([F.pad(torch.ones(1), (4, 4)), F.pad(first, (2, 2)), second], dim=1).to(device)


@torch.no_grad()
def log_mel(waveforms: Tensor, mels: int, shift: int) -> Tensor:
    """Log mel energies of (B, N) samples in [-1, 1], at Kaldi's 16-bit scale: (B, T, mels)."""
    device = waveforms.device
    with torch.autocast(device.type, enabled=False):
        frames = (waveforms.float() * 32768.0).unfold(1, WINDOW, shift)
        real, imaginary = (frames @ spectrum_matrix(device)).chunk(2, dim=2)
        power = real.square() + imaginary.square()
        return torch.log((power @ mel_filters(mels, device)).clamp(min=torch.finfo(torch.float32).eps))


@torch.no_grad()
def add_deltas(features: Tensor) -> Tensor:
    """Append deltas and delta-deltas to features: (B, T, D) -> (B, T, 3 D)."""
    batch, frames, dimension = features.shape
    padded = F.pad(features.transpose(1, 2), (4, 4), mode="replicate")
    # A matrix product, because a GPU would compute a convolution in TF32.
    filtered = padded.unfold(2, 9, 1) @ delta_filters(features.device)  # (B, D, T, 3)
    return filtered.permute(0, 2, 3, 1).reshape(batch, frames, 3 * dimension)


def add_context(features: Tensor, frames: int) -> Tensor:
    """Join each frame with `frames` on each side, repeating the edges: (B, T, D) -> (B, T, (2 * frames + 1) * D)."""
    times = torch.arange(features.shape[1], device=features.device)
    return torch.cat([features[:, (times + d).clamp(0, len(times) - 1)] for d in range(-frames, frames + 1)], dim=2)


@torch.no_grad()
def mfcc(waveforms: Tensor, config: MfccConfig) -> Tensor:
    """MFCC, deltas and delta-deltas at 50 frames per second: (B, N) -> (B, T, dimension)."""
    energies = log_mel(waveforms, config.mels, SAMPLE_RATE * config.shift_ms // 1000)
    with torch.autocast(waveforms.device.type, enabled=False):
        features = add_deltas(energies @ cosine_transform(config.mels, config.cepstra, waveforms.device))
    features = features[:, :: 20 // config.shift_ms]
    return add_context(features, config.context) if config.context else features
