"""Denoising augmentation after WavLM: noise over an utterance, and a stretch of another utterance mixed in.

Chances, places and levels are drawn on the host from a seeded generator per utterance (`draw`); the mixing is
batched tensor code on the device (`augment`). The target side never sees it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class AugmentConfig:
    """Noise and utterance mixing; the defaults are the paper's."""

    p_noise: float = 0.25
    """Probability of noise over an utterance."""
    p_mix: float = 0.25
    """Probability of another utterance mixed in."""
    snr_low: float = -5.0
    """Lowest signal-to-noise ratio, dB."""
    snr_high: float = 20.0
    """Highest signal-to-noise ratio, dB."""
    mix_low: float = -5.0
    """Lowest energy ratio of the mixed-in stretch to the one it covers, dB."""
    mix_high: float = 5.0
    """Highest energy ratio of the mixed-in stretch, dB."""
    mix_longest: float = 0.5
    """Longest mixed-in stretch, as a share of the utterance."""
    noise: str = ""
    """Noise recordings: a folder, an index or shards; empty for other utterances of the batch."""


@dataclass(frozen=True)
class Draws:
    """What happens to each utterance of a batch; each field is (B,)."""

    noisy: np.ndarray
    noise_place: np.ndarray  # in [0, 1): where in the noise, or which other utterance
    noise_snr: np.ndarray
    mixed: np.ndarray
    mix_partner: np.ndarray  # index of the other utterance
    mix_length: np.ndarray  # share of the utterance
    mix_start: np.ndarray  # in [0, 1) of the places where it fits, in the utterance
    mix_from: np.ndarray  # the same, in the partner
    mix_ratio: np.ndarray


def draw(generators: list[np.random.Generator], config: AugmentConfig) -> Draws:
    """One row of draws an utterance, each from its own generator; partners are other utterances of the batch."""
    u = np.stack([generator.random(9) for generator in generators])
    batch = len(u)
    other = 1 + np.minimum((u[:, 4] * (batch - 1)).astype(int), max(0, batch - 2))
    return Draws(
        noisy=u[:, 0] < config.p_noise,
        noise_place=u[:, 1],
        noise_snr=config.snr_low + u[:, 2] * (config.snr_high - config.snr_low),
        mixed=(u[:, 3] < config.p_mix) & (batch > 1),
        mix_partner=(np.arange(batch) + other) % batch,
        mix_length=u[:, 5] * config.mix_longest,
        mix_start=u[:, 6],
        mix_from=u[:, 7],
        mix_ratio=config.mix_low + u[:, 8] * (config.mix_high - config.mix_low),
    )


def augment(clean: Tensor, draws: Draws, noise: Tensor | None = None) -> Tensor:
    """Augmented copy of (B, N) samples; `noise` is one long recording to cut from."""
    if not (draws.noisy.any() or draws.mixed.any()):
        return clean
    return mix_utterances(add_noise(clean, draws, noise), clean, draws)


def add_noise(clean: Tensor, draws: Draws, noise: Tensor | None) -> Tensor:
    """x + a n with a = sqrt(E_x / (10^(SNR/10) E_n))."""
    rows = np.flatnonzero(draws.noisy)
    if not len(rows):
        return clean
    batch, samples = clean.shape
    if noise is not None and len(noise) >= samples:
        start = on_device((draws.noise_place[rows] * (len(noise) - samples + 1)).astype(np.int64), clean)
        n = noise[start[:, None] + torch.arange(samples, device=clean.device)].to(clean.dtype)
        n = n / 32768.0 if noise.dtype == torch.int16 else n
    else:
        other = (rows + 1 + (draws.noise_place[rows] * max(1, batch - 1)).astype(np.int64)) % batch
        n = clean[on_device(other, clean)]
    where = on_device(rows, clean)
    x = clean[where]
    snr = on_device(10.0 ** (draws.noise_snr[rows] / 10), clean).to(clean.dtype)
    scale = torch.sqrt(energy(x) / (snr * energy(n)).clamp(min=1e-12))
    return clean.index_copy(0, where, x + scale[:, None] * n)


def mix_utterances(noisy: Tensor, clean: Tensor, draws: Draws) -> Tensor:
    """x[t1:t2] + b y[s1:s2] with b = sqrt(E_1 10^(r/10) / E_2) over the stretches."""
    rows = np.flatnonzero(draws.mixed)
    if not len(rows):
        return noisy
    samples = clean.shape[1]
    length = np.maximum(1, (draws.mix_length[rows] * samples).astype(np.int64))
    start = (draws.mix_start[rows] * (samples - length + 1)).astype(np.int64)
    source = (draws.mix_from[rows] * (samples - length + 1)).astype(np.int64)
    where, count = on_device(rows, clean), on_device(length, clean)
    t = torch.arange(samples, device=clean.device) - on_device(start, clean)[:, None]
    inside = (t >= 0) & (t < count[:, None])
    partner = on_device(draws.mix_partner[rows], clean)
    y = clean[partner].gather(1, (t + on_device(source, clean)[:, None]).clamp(0, samples - 1)) * inside
    x = noisy[where]
    ratio = on_device(10.0 ** (draws.mix_ratio[rows] / 10), clean).to(clean.dtype)
    first, second = (x * inside).square().sum(1), y.square().sum(1)
    scale = torch.sqrt(first * ratio / second.clamp(min=1e-12))
    return noisy.index_copy(0, where, x + scale[:, None] * y)


def energy(x: Tensor) -> Tensor:
    return x.square().mean(1)


def on_device(values: np.ndarray, like: Tensor) -> Tensor:
    """A few host numbers on the device, copied without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else tensor
