"""Denoising augmentation after WavLM: noise over an utterance, and a stretch of another utterance mixed in.

Chances, places and levels are drawn on the host from a seeded generator per utterance (`draw`); the mixing is
batched tensor code on the device (`augment`), the same operations whatever was drawn, so that it can be compiled
and captured with the rest of a step. The target side never sees it.
"""

from dataclasses import dataclass
from typing import NamedTuple

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


class Draws(NamedTuple):
    """What happens to each utterance of a batch; each field is (B,) in fp64."""

    noisy: Tensor  # 1 where noise is added
    noise_place: Tensor  # in [0, 1): where in the noise, or which other utterance
    noise_snr: Tensor
    mixed: Tensor  # 1 where another utterance is mixed in
    mix_partner: Tensor  # index of the other utterance
    mix_length: Tensor  # share of the utterance
    mix_start: Tensor  # in [0, 1) of the places where it fits, in the utterance
    mix_from: Tensor  # the same, in the partner
    mix_ratio: Tensor


def draw(generators: list[np.random.Generator], config: AugmentConfig) -> Tensor:
    """The fields of `Draws` as rows, (9, B), each utterance's from its own generator; partners are of the batch."""
    u = np.stack([generator.random(9) for generator in generators])
    batch = len(u)
    other = 1 + np.minimum((u[:, 4] * (batch - 1)).astype(int), max(0, batch - 2))
    rows = (
        u[:, 0] < config.p_noise,
        u[:, 1],
        config.snr_low + u[:, 2] * (config.snr_high - config.snr_low),
        (u[:, 3] < config.p_mix) & (batch > 1),
        (np.arange(batch) + other) % batch,
        u[:, 5] * config.mix_longest,
        u[:, 6],
        u[:, 7],
        config.mix_low + u[:, 8] * (config.mix_high - config.mix_low),
    )
    return torch.from_numpy(np.stack([row.astype(np.float64) for row in rows]))


def augment(clean: Tensor, draws: Tensor, noise: Tensor | None = None) -> Tensor:
    """Augmented copy of (B, N) samples; `noise` is one long recording to cut from."""
    drawn = Draws(*draws)
    return mix_utterances(add_noise(clean, drawn, noise), clean, drawn)


def add_noise(clean: Tensor, drawn: Draws, noise: Tensor | None) -> Tensor:
    """x + a n with a = sqrt(E_x / (10^(SNR/10) E_n)), and a = 0 where no noise is drawn."""
    batch, samples = clean.shape
    if noise is not None and len(noise) >= samples:
        start = (drawn.noise_place * (len(noise) - samples + 1)).long()
        n = noise[start[:, None] + torch.arange(samples, device=clean.device)].to(clean.dtype)
        n = n / 32768.0 if noise.dtype == torch.int16 else n
    else:
        step = (drawn.noise_place * max(1, batch - 1)).long()
        n = clean[(torch.arange(batch, device=clean.device) + 1 + step) % batch]
    snr = (10.0 ** (drawn.noise_snr / 10)).to(clean.dtype)
    scale = torch.sqrt(clean.square().mean(1) / (snr * n.square().mean(1)).clamp(min=1e-12))
    return clean + torch.where(drawn.noisy > 0, scale, 0.0)[:, None] * n


def mix_utterances(noisy: Tensor, clean: Tensor, drawn: Draws) -> Tensor:
    """x[t1:t2] + b y[s1:s2] with b = sqrt(E_1 10^(r/10) / E_2) over the stretches, and b = 0 where none is drawn."""
    samples = clean.shape[1]
    length = (drawn.mix_length * samples).long().clamp(min=1)
    start, source = ((place * (samples - length + 1)).long() for place in (drawn.mix_start, drawn.mix_from))
    t = torch.arange(samples, device=clean.device) - start[:, None]
    inside = (t >= 0) & (t < length[:, None])
    y = clean[drawn.mix_partner.long()[:, None], (t + source[:, None]).clamp(0, samples - 1)] * inside
    ratio = (10.0 ** (drawn.mix_ratio / 10)).to(clean.dtype)
    scale = torch.sqrt((noisy * inside).square().sum(1) * ratio / y.square().sum(1).clamp(min=1e-12))
    return noisy + torch.where(drawn.mixed > 0, scale, 0.0)[:, None] * y
