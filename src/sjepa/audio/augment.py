"""Augmentation of the encoder's input: noise and mixing as in WavLM, plus our own speed change and equalizer.

`draw` decides on the host what happens to each utterance, from one seeded generator per utterance. `augment` changes
the audio on the device with batched tensor code. It runs the same operations whatever was drawn, so it can be compiled
and captured with the rest of the step. Targets are computed from clean audio.
"""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.frames import RECEPTIVE_FIELD, STRIDE
from sjepa.audio.io import SAMPLE_RATE
from sjepa.bounds import DECIBELS, SHARE, Bound

BANDS = 8  # control points of the equalizer, equally spaced on the mel scale
TAPS = 16  # input samples that the interpolation reads for each output sample of a speed change


@dataclass(frozen=True)
class AugmentConfig:
    """Noise and utterance mixing, speed changes and an equalizer."""

    p_noise: Annotated[float, SHARE] = 0.25
    """Probability of noise. Noise recordings cover the whole utterance; another utterance covers at most
    `mix_longest` of it."""
    p_mix: Annotated[float, SHARE] = 0.25
    """Probability that another utterance is mixed in."""
    snr_low: Annotated[float, DECIBELS] = -5.0
    """Lowest signal-to-noise ratio, dB."""
    snr_high: Annotated[float, DECIBELS] = 20.0
    """Highest signal-to-noise ratio, dB."""
    mix_low: Annotated[float, DECIBELS] = -5.0
    """Lowest energy of the mixed-in utterance, relative to the part of the utterance that it covers, dB."""
    mix_high: Annotated[float, DECIBELS] = 5.0
    """Highest relative energy of the mixed-in utterance, dB."""
    mix_longest: Annotated[float, SHARE] = 0.5
    """Longest stretch of another utterance, mixed in or in place of noise, as a share of the utterance (WavLM)."""
    noise: str = ""
    """Noise recordings: a folder, an index or shards; empty for other utterances of the batch."""
    speed: Annotated[float, Bound(0, 0.5, "it should lie between 0 and 0.5")] = 0.0
    """Largest relative change of an utterance's speed, which also shifts pitch and formants (not in the
    paper; try 0.1)."""
    speed_targets: bool = False
    """Compute targets from the audio at the changed speed. Otherwise their features come from its original speed and
    are interpolated in time."""
    equalizer: Annotated[float, Bound(0, 60, "it should lie between 0 and 60 dB")] = 0.0
    """Largest gain or loss of a random equalizer, dB (not in the paper; try 6)."""


class Draws(NamedTuple):
    """The augmentation drawn for each utterance of a batch; each field is (B,) in fp64."""

    noisy: Tensor  # 1 where noise is added
    noise_place: Tensor  # in [0, 1): the position in the noise, or the choice of the other utterance
    noise_snr: Tensor
    mixed: Tensor  # 1 where another utterance is mixed in
    mix_partner: Tensor  # index of the other utterance
    mix_length: Tensor  # share of the utterance
    mix_start: Tensor  # in [0, 1) of the positions at which it fits in the utterance
    mix_from: Tensor  # the same, in the other utterance
    mix_ratio: Tensor
    rate: Tensor  # samples of the utterance per sample that the encoder sees
    noise_length: Tensor  # share of the utterance that the noise covers, if it is another utterance
    noise_start: Tensor  # in [0, 1) of the positions at which it fits
    gains: Tensor  # (BANDS, B) of the equalizer, dB

    @classmethod
    def from_rows(cls, rows: Tensor) -> "Draws":
        return cls._make([*rows[:12], rows[12:]])


def draw(generators: list[np.random.Generator], config: AugmentConfig) -> Tensor:
    """Draw the fields of `Draws` as rows (20, B), with one generator per utterance. Others come from the same batch."""
    u = np.stack([generator.random(12 + BANDS) for generator in generators])
    batch = len(u)
    other = 1 + np.minimum((u[:, 4] * (batch - 1)).astype(int), max(0, batch - 2))
    rows = (
        (u[:, 0] < config.p_noise) & (batch > 1 or bool(config.noise)),
        u[:, 1],
        config.snr_low + u[:, 2] * (config.snr_high - config.snr_low),
        (u[:, 3] < config.p_mix) & (batch > 1),
        (np.arange(batch) + other) % batch,
        u[:, 5] * config.mix_longest,
        u[:, 6],
        u[:, 7],
        config.mix_low + u[:, 8] * (config.mix_high - config.mix_low),
        1.0 + config.speed * (2.0 * u[:, 9] - 1.0),
        u[:, 10 + BANDS] * config.mix_longest,
        u[:, 11 + BANDS],
        *(config.equalizer * (2.0 * u[:, 10 : 10 + BANDS].T - 1.0)),
    )
    return torch.from_numpy(np.stack([row.astype(np.float64) for row in rows]))


def student_samples(samples: int, speed: float) -> int:
    """Length of the encoder's input for which `samples` of an utterance are enough at any drawn speed."""
    return math.floor(samples / (1.0 + speed))


def augment(clean: Tensor, draws: Tensor, noise: Tensor | None = None, equalize: bool = False) -> Tensor:
    """Return a copy of (B, N) audio with equalizer, noise and mixing. `noise` is one long recording."""
    drawn = Draws.from_rows(draws)
    student = apply_equalizer(clean, drawn.gains) if equalize else clean
    return mix_utterances(add_noise(student, drawn, noise), student, drawn)


def change_speed(clean: Tensor, rate: Tensor, samples: int) -> Tensor:
    """Read (B, N) audio at `rate` (B,) samples per sample, by windowed-sinc interpolation: (B, samples)."""
    place = rate[:, None] * torch.arange(samples, device=clean.device, dtype=torch.float64)
    first = place.floor()
    offset = torch.arange(TAPS, device=clean.device) - (TAPS // 2 - 1)  # taps around the place
    distance = (offset - (place - first).unsqueeze(2)).float()  # (B, samples, TAPS)
    cutoff = rate.clamp(min=1.0).reciprocal().float()[:, None, None]  # faster audio would alias above it
    window = torch.cos(math.pi * distance / (TAPS + 2)).square()
    weights = cutoff * torch.sinc(cutoff * distance) * window
    index = (first.long().unsqueeze(2) + offset).clamp(0, clean.shape[1] - 1)
    utterance = torch.arange(len(clean), device=clean.device)[:, None, None]
    return (clean[utterance, index] * weights).sum(2)


def align_features(features: Tensor, draws: Tensor, frames: int) -> Tensor:
    """Interpolate the features (B, T, D) of clean audio at the times of the encoder's `frames`, at the drawn speed."""
    rate, half = Draws.from_rows(draws).rate[:, None], RECEPTIVE_FIELD // 2
    centre = rate * (STRIDE * torch.arange(frames, device=features.device) + half)  # in samples of the clean audio
    last = features.shape[1] - 1
    place = ((centre - half) / STRIDE).clamp(0, last)
    before = place.floor().long()
    after = (before + 1).clamp(max=last)
    share = (place - before).float().unsqueeze(2)
    utterance = torch.arange(len(features), device=features.device)[:, None]
    features = features.float()
    return torch.lerp(features[utterance, before], features[utterance, after], share)


def band_shapes(bins: int, device: torch.device) -> Tensor:
    """Triangles on the mel scale that interpolate between the equalizer's control points: (BANDS, bins)."""
    mel = torch.log1p(torch.linspace(0, SAMPLE_RATE / 2, bins, device=device) / 700.0)
    place = (BANDS - 1) * mel / mel[-1]
    return (1.0 - (place - torch.arange(BANDS, device=device)[:, None]).abs()).clamp(min=0.0)


def apply_equalizer(audio: Tensor, gains: Tensor) -> Tensor:
    """Filter (B, N) audio with a smooth frequency response through the gains (BANDS, B), dB."""
    spectrum = torch.fft.rfft(audio)
    decibels = gains.to(audio.dtype).t() @ band_shapes(spectrum.shape[1], audio.device)
    return torch.fft.irfft(spectrum * 10.0 ** (decibels / 20.0), n=audio.shape[1])


def add_noise(clean: Tensor, drawn: Draws, noise: Tensor | None) -> Tensor:
    """x + a n with a = sqrt(E_x / (10^(SNR/10) E_n)), and a = 0 where no noise is drawn.

    A noise recording covers all of x. Another utterance covers only a stretch, and E_n is the mean over that stretch. A
    second voice as long as x would make it impossible to tell which of the two voices the targets follow.
    """
    batch, samples = clean.shape
    if noise is not None and len(noise) >= samples:
        start = (drawn.noise_place * (len(noise) - samples + 1)).long()
        n = noise[start[:, None] + torch.arange(samples, device=clean.device)].to(clean.dtype)
        n = n / 32768.0 if noise.dtype == torch.int16 else n
        covered: Tensor | int = samples
    else:
        step = (drawn.noise_place * max(1, batch - 1)).long()
        covered, start = place_stretch(drawn.noise_length, drawn.noise_start, samples)
        n = clean[(torch.arange(batch, device=clean.device) + 1 + step) % batch] * mask_stretch(start, covered, samples)
    snr = (10.0 ** (drawn.noise_snr / 10)).to(clean.dtype)
    energy = n.square().sum(1) / covered
    scale = torch.sqrt(clean.square().mean(1) / (snr * energy).clamp(min=1e-12))
    return clean + torch.where(drawn.noisy > 0, scale, 0.0)[:, None] * n


def place_stretch(share: Tensor, place: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Length and first sample of a stretch that covers `share` of the utterance, at `place` in [0, 1) of its range."""
    length = (share * samples).long().clamp(min=1)
    return length, (place * (samples - length + 1)).long()


def mask_stretch(start: Tensor, length: Tensor, samples: int) -> Tensor:
    """Whether each sample lies in its utterance's stretch: (B, samples)."""
    t = torch.arange(samples, device=start.device) - start[:, None]
    return (t >= 0) & (t < length[:, None])


def mix_utterances(noisy: Tensor, clean: Tensor, drawn: Draws) -> Tensor:
    """x[t1:t2] + b y[s1:s2] with b = sqrt(E_1 10^(r/10) / E_2) over the stretches, and b = 0 where none is drawn."""
    samples = clean.shape[1]
    length, start = place_stretch(drawn.mix_length, drawn.mix_start, samples)
    _, source = place_stretch(drawn.mix_length, drawn.mix_from, samples)
    inside = mask_stretch(start, length, samples)
    t = torch.arange(samples, device=clean.device) + (source - start)[:, None]
    y = clean[drawn.mix_partner.long()[:, None], t.clamp(0, samples - 1)] * inside
    ratio = (10.0 ** (drawn.mix_ratio / 10)).to(clean.dtype)
    scale = torch.sqrt((noisy * inside).square().sum(1) * ratio / y.square().sum(1).clamp(min=1e-12))
    return noisy + torch.where(drawn.mixed > 0, scale, 0.0)[:, None] * y
