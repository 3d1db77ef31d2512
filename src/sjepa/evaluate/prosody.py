"""Prosody: pitch and energy from audio, stress and tone from phone labels, and a regression probe."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sjepa.audio.io import SAMPLE_RATE
from sjepa.evaluate.probes import Scores, draw_fifths, standardize, summarize
from sjepa.evaluate.superb.text import VOWELS

WINDOW = 640  # samples: 40 ms, two periods at 50 Hz
LOWEST, HIGHEST = 60.0, 400.0  # Hz
VOICED = 0.5  # smallest normalised autocorrelation of a voiced frame
NEAR_BEST = 0.9  # the period is the shortest lag that reaches this fraction of the best peak, to avoid octave errors
RIDGE = 1e-3
LEFT_OUT = -1  # the group of an utterance that the regression probe does not use
ARPABET = re.compile(rf"({'|'.join(VOWELS)})([012])")
IPA_STRESS = {"ˈ": "1", "ˌ": "2"}
TONE_LETTERS = re.compile(r"[˥˦˧˨˩]+")
TONE_NUMBER = re.compile(r".*[^\d](\d)")


def cut_windows(samples: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return 40 ms windows around centres in seconds, zero-padded at the ends: (frames, 640)."""
    padded = np.pad(samples.astype(np.float64), WINDOW // 2 + 1)
    starts = np.clip(np.round(centres * SAMPLE_RATE).astype(int), 0, len(samples))
    return padded[starts[:, None] + 1 + np.arange(WINDOW)]


def compute_log_energy(samples: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the energy around each centre in dB, at least -100."""
    return 10 * np.log10(np.mean(cut_windows(samples, centres) ** 2, axis=1) + 1e-10)


def estimate_pitch(samples: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Estimate the fundamental frequency in Hz around each centre by autocorrelation. Unvoiced frames are NaN.

    The autocorrelation of the windowed signal is divided by that of the window, as in Boersma (1993).
    """
    shape = np.hanning(WINDOW + 2)[1:-1]
    frames = cut_windows(samples, centres)
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


def parse_stress(phone: str) -> str:
    """Return the stress (0, 1 or 2) of an ARPAbet vowel or an IPA stress mark, or an empty string."""
    match = ARPABET.fullmatch(phone.upper())
    return match[2] if match else IPA_STRESS.get(phone[:1], "")


def parse_tone(phone: str) -> str:
    """Return tone letters, or the final number of a symbol that is not an ARPAbet vowel, or an empty string."""
    if ARPABET.fullmatch(phone.upper()):
        return ""
    letters = TONE_LETTERS.search(phone)
    if letters:
        return letters[0]
    number = TONE_NUMBER.fullmatch(phone)
    return number[1] if number else ""


def label_frames(phones: np.ndarray, label: Callable[[str], str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the frames whose phone has a label, and the labels."""
    names, places = np.unique(phones, return_inverse=True)
    labels = np.array([label(str(name)) for name in names])[places]
    kept = np.flatnonzero(labels != "")
    return kept, labels[kept]


def regression_probe(x: Tensor, y: np.ndarray, groups: np.ndarray, splits: int, seed: int) -> Scores:
    """Return R² of a linear regression on held-out groups, with standardised features.

    Groups are speakers, or utterances of a single speaker. Each split holds out another fifth of the groups. R² is 0
    for predicting the training mean, and negative for worse predictions.
    """
    scores = []
    for fifth in draw_fifths(np.unique(groups), splits, seed):
        held = np.isin(groups, fifth)
        train, test = (torch.from_numpy(np.flatnonzero(part)).to(x.device) for part in (~held, held))
        target = torch.from_numpy(y).to(x.device).double()
        a, b = (part.double() for part in standardize(x[train], x[test]))
        mean = target[train].mean()
        # A small ridge makes the solution stable with constant or dependent features.
        gram = a.T @ a + RIDGE * len(a) * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
        weights = torch.linalg.solve(gram, a.T @ (target[train] - mean))
        error = (target[test] - mean - b @ weights).square().sum()
        spread = (target[test] - target[train].mean()).square().sum()
        scores.append(float(1 - error / spread.clamp(min=1e-12)))
    return summarize(scores)


def choose_groups(speakers: Sequence[str], utterances: Sequence[int]) -> np.ndarray:
    """Return the number of the group of each utterance: its speaker if two are known, otherwise the utterance itself.

    Among known speakers, an utterance without one is LEFT_OUT: it may be from a speaker that is held out.
    """
    names = sorted(set(speakers) - {""})
    if len(names) < 2:
        return np.array(utterances)
    return np.array([names.index(speaker) if speaker else LEFT_OUT for speaker in speakers])
