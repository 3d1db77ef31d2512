"""SpecAugment on features in training: time warp, bands of the feature axis and stretches of time set to zero."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FEATURES = 768  # width for which the protocol's band widths are meant


@dataclass(frozen=True)
class SpecAugment:
    """s3prl's settings for ASR and slot filling."""

    warp: int = 5
    bands: int = 4
    band_width: int = 50
    stretches: int = 2
    stretch_width: int = 40

    def __call__(self, x: Tensor, frames: Tensor, generator: torch.Generator) -> Tensor:
        """Augment (B, T, D) with numbers drawn on the CPU, so that a seed means the same everywhere."""
        rows = zip(x, frames.tolist(), strict=True)
        x = torch.stack([self.warped(row, count, generator) for row, count in rows])
        longest, dimension = x.shape[1:]
        # Narrow features keep the share that is masked in the protocol's 768.
        band = max(1, min(self.band_width, self.band_width * dimension // FEATURES))
        x = x.masked_fill(covered(len(x), dimension, self.bands, band, generator).to(x.device).unsqueeze(1), 0.0)
        stretches = covered(len(x), longest, self.stretches, self.stretch_width, generator)
        return x.masked_fill(stretches.to(x.device).unsqueeze(2), 0.0)

    def warped(self, row: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Move one frame by at most `warp` frames and stretch what lies on both sides of it: (T, D)."""
        if count <= 2 * self.warp:
            return row
        centre = int(torch.randint(self.warp, count - self.warp, (), generator=generator))
        moved = centre + int(torch.randint(1 - self.warp, self.warp + 1, (), generator=generator))
        # The ends stay at least one frame long.
        moved = min(max(moved, 1), count - 1)
        left, right = resized(row[:centre], moved), resized(row[centre:count], count - moved)
        return torch.cat([left, right, row[count:]])


def resized(x: Tensor, frames: int) -> Tensor:
    """Bicubic along time: (T, D) -> (frames, D)."""
    return F.interpolate(x[None, None], (frames, x.shape[1]), mode="bicubic", align_corners=False)[0, 0]


def covered(rows: int, size: int, masks: int, width: int, generator: torch.Generator) -> Tensor:
    """True where one of `masks` random intervals, each shorter than `width`, lies: (rows, size)."""
    if not masks or not width:
        return torch.zeros(rows, size, dtype=torch.bool)
    lengths = torch.randint(0, width, (rows, masks, 1), generator=generator)
    starts = torch.randint(0, max(1, size - int(lengths.max())), (rows, masks, 1), generator=generator)
    place = torch.arange(size)
    return ((starts <= place) & (place < starts + lengths)).any(1)
