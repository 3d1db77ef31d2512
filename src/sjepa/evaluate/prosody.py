"""Pitch and energy from the audio, stress and tone from phone labels, and how well linear probes read them."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE
from sjepa.evaluate.probes import Scores, divide, standardised, summary
from sjepa.evaluate.superb.text import VOWELS

WINDOW = 640  # samples: 40 ms, two periods at 50 Hz
LOWEST, HIGHEST = 60.0, 400.0  # Hz
VOICED = 0.5  # normalised autocorrelation from which a frame is voiced
NEAR_BEST = 0.9  # of the best peak: the shortest lag that reaches it is the period, so that octaves are not mistaken
RIDGE = 1e-3
ARPABET = re.compile(rf"({'|'.join(VOWELS)})([012])")
IPA_STRESS = {"ˈ": "1", "ˌ": "2"}
TONE_LETTERS = re.compile(r"[˥˦˧˨˩]+")
TONE_NUMBER = re.compile(r".*[^\d](\d)")


def windows_at(samples: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Stretches of 40 ms around centres in seconds, zeros beyond the ends: (frames, 640)."""
    padded = np.pad(samples.astype(np.float64), WINDOW // 2 + 1)
    starts = np.clip(np.round(centres * SAMPLE_RATE).astype(int), 0, len(samples))
    return padded[starts[:, None] + 1 + np.arange(WINDOW)]


def log_energy(samples: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Decibels of the mean square around each centre, at least -100."""
    return 10 * np.log10(np.mean(windows_at(samples, centres) ** 2, axis=1) + 1e-10)


def pitch(samples: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Fundamental frequency in Hz around each centre by autocorrelation; NaN where nothing is voiced.

    The autocorrelation of the windowed signal is divided by that of the window, as Boersma (1993) does.
    """
    shape = np.hanning(WINDOW + 2)[1:-1]
    frames = windows_at(samples, centres)
    frames = (frames - frames.mean(1, keepdims=True)) * shape

    def correlation(x: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.fft.irfft(np.abs(np.fft.rfft(x, 2 * WINDOW, axis=-1)) ** 2, axis=-1)[..., :WINDOW]
        return found / np.maximum(found[..., :1], 1e-12)

    shortest, longest = int(SAMPLE_RATE / HIGHEST), int(SAMPLE_RATE / LOWEST)
    lags = correlation(frames)[:, : longest + 2] / correlation(shape)[: longest + 2]
    inner = lags[:, shortest : longest + 1]
    peaks = (inner >= lags[:, shortest - 1 : longest]) & (inner >= lags[:, shortest + 1 : longest + 2])
    heights = np.where(peaks, inner, -np.inf)
    best = heights.max(1)
    first = np.argmax(heights >= NEAR_BEST * best[:, None], axis=1)
    place = first + shortest
    rows = np.arange(len(lags))
    before, at, after = (lags[rows, place + shift] for shift in (-1, 0, 1))
    bend = before - 2 * at + after
    shift = np.where(np.abs(bend) > 1e-9, 0.5 * (before - after) / np.where(np.abs(bend) > 1e-9, bend, 1), 0)
    voiced = (best > VOICED) & (np.mean(frames**2, axis=1) > 1e-9)
    return np.where(voiced, SAMPLE_RATE / (place + np.clip(shift, -0.5, 0.5)), np.nan)


def stress_of(phone: str) -> str:
    """0, 1 or 2 of an ARPAbet vowel, or an IPA stress mark; empty without either."""
    match = ARPABET.fullmatch(phone.upper())
    return match[2] if match else IPA_STRESS.get(phone[:1], "")


def tone_of(phone: str) -> str:
    """Tone letters, or the number at the end of a symbol that is no ARPAbet vowel; empty without either."""
    if ARPABET.fullmatch(phone.upper()):
        return ""
    letters = TONE_LETTERS.search(phone)
    if letters:
        return letters[0]
    number = TONE_NUMBER.fullmatch(phone)
    return number[1] if number else ""


def label_frames(phones: np.ndarray, label: Callable[[str], str]) -> tuple[np.ndarray, np.ndarray]:
    """Frames whose phone carries a label, and these labels."""
    names, places = np.unique(phones, return_inverse=True)
    labels = np.array([label(str(name)) for name in names])[places]
    kept = np.flatnonzero(labels != "")
    return kept, labels[kept]


def regression_probe(x: Tensor, y: np.ndarray, groups: np.ndarray, splits: int, seed: int) -> Scores:
    """R² on held-out groups of a linear regression on features standardised by the training part.

    Groups are speakers, or utterances of a single speaker: a fifth is held out, another fifth in each split. R² is 0
    for the mean of the training part, and below 0 for what is worse than that.
    """
    names = np.random.default_rng(seed).permutation(np.unique(groups))
    fifth = len(divide(names)[0])
    scores = []
    for split in range(min(splits, len(names) // fifth)):
        held = np.isin(groups, names[fifth * split : fifth * (split + 1)])
        train, test = (torch.from_numpy(np.flatnonzero(part)).to(x.device) for part in (~held, held))
        target = torch.from_numpy(y).to(x.device).double()
        a, b = (part.double() for part in standardised(x[train], x[test]))
        mean = target[train].mean()
        # A small ridge keeps constant and dependent features from breaking the solution.
        gram = a.T @ a + RIDGE * len(a) * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
        weights = torch.linalg.solve(gram, a.T @ (target[train] - mean))
        error = (target[test] - mean - b @ weights).square().sum()
        spread = (target[test] - target[train].mean()).square().sum()
        scores.append(float(1 - error / spread.clamp(min=1e-12)))
    return summary(scores)


def usable_groups(speakers: Sequence[str], utterances: Sequence[int]) -> np.ndarray:
    """Speakers where there are several, else utterances: what is held out together."""
    return np.array(speakers) if len(set(speakers)) > 1 else np.array(utterances)
