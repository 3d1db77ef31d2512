"""SpecAugment on features: time warping, and masking of feature bands and time spans."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FEATURES = 768  # feature dimension for which the protocol defines its band widths


@dataclass(frozen=True)
class SpecAugment:
    """s3prl's settings for ASR and slot filling."""

    warp: int = 5
    bands: int = 4
    band_width: int = 50
    stretches: int = 2
    stretch_width: int = 40

    def __call__(self, x: Tensor, frames: Tensor, generator: torch.Generator) -> Tensor:
        """Augment (B, T, D). Random numbers are drawn on the CPU, for the same result on all devices."""
        rows = zip(x, frames.tolist(), strict=True)
        x = torch.stack([self.warp_time(row, count, generator) for row, count in rows])
        longest, dimension = x.shape[1:]
        # Narrow features have the same masked fraction as 768 dimensions.
        band = max(1, min(self.band_width, self.band_width * dimension // FEATURES))
        x = x.masked_fill(make_mask(len(x), dimension, self.bands, band, generator).to(x.device).unsqueeze(1), 0.0)
        stretches = make_mask(len(x), longest, self.stretches, self.stretch_width, generator)
        return x.masked_fill(stretches.to(x.device).unsqueeze(2), 0.0)

    def warp_time(self, row: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Move one frame by at most `warp` frames and resize both sides, which keep at least one frame: (T, D)."""
        if count <= 2 * self.warp:
            return row
        centre = int(torch.randint(self.warp, count - self.warp, (), generator=generator))
        moved = centre + int(torch.randint(1 - self.warp, self.warp + 1, (), generator=generator))
        left, right = resize(row[:centre], moved), resize(row[centre:count], count - moved)
        return torch.cat([left, right, row[count:]])


def resize(x: Tensor, frames: int) -> Tensor:
    """Resize along time by bicubic interpolation: (T, D) -> (frames, D)."""
    return F.interpolate(x[None, None], (frames, x.shape[1]), mode="bicubic", align_corners=False)[0, 0]


def make_mask(rows: int, size: int, masks: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw a mask (rows, size) that is True inside `masks` random intervals, each shorter than `width`."""
    if not masks or not width:
        return torch.zeros(rows, size, dtype=torch.bool)
    lengths = torch.randint(0, width, (rows, masks, 1), generator=generator)
    starts = torch.randint(0, max(1, size - int(lengths.max())), (rows, masks, 1), generator=generator)
    place = torch.arange(size)
    return ((starts <= place) & (place < starts + lengths)).any(1)
