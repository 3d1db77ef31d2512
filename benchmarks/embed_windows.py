"""Compare windowed features of `sjepa embed` with the encoder on the whole recording, and measure the joins.

    python benchmarks/embed_windows.py RUN AUDIO

Recordings of several minutes are concatenated from the utterances in AUDIO: one voice (the first folder), all voices,
all voices at random levels (0 to -30 dB), and all voices with pauses of up to 20 s.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import torch

from sjepa import Encoder
from sjepa.audio.io import read_audio
from sjepa.embed.network import Network
from sjepa.embed.window_config import MARGIN, WindowConfig
from sjepa.embed.windows import cut_windows, join_windows
from sjepa.model.moments import measure_moments

run, audio = Path(sys.argv[1]), Path(sys.argv[2])
config = WindowConfig()
files = sorted(path for path in audio.rglob("*") if path.suffix in (".flac", ".wav"))
rng = np.random.default_rng(0)


def make_recording(kind: str) -> np.ndarray:
    chosen = [f for f in files if f.parent == files[0].parent] * 2 if kind == "one voice" else rng.permutation(files)
    pieces = []
    for file in list(chosen)[:60]:
        pieces.append(read_audio(file) * (10 ** (rng.uniform(-30, 0) / 20) if kind == "levels" else 1.0))
        if kind == "pauses":
            pieces.append(1e-4 * rng.standard_normal(int(16_000 * rng.choice([0.2, 1, 4, 10, 20]))))
    return np.concatenate(pieces).astype(np.float32)


encoder = Encoder.from_pretrained(run).requires_grad_(False)
network = Network(encoder, (encoder.config.layers,), torch.device("cpu"), "head")

print("| recording | seconds | difference, median | 95% | same unit | step in fades | step at a hard cut |")
print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
for kind in ("one voice", "all voices", "levels", "pauses"):
    samples = make_recording(kind)
    whole = network.features([samples])[0]
    moments = measure_moments([samples])
    parts = [(w.start, network.window_features(w.samples, moments)) for w in cut_windows([samples], config)]
    joined = torch.cat(list(join_windows(parts, config)))
    relative = (joined - whole).norm(dim=1) / whole.norm(dim=1)
    same = (network.posteriors(joined).argmax(1) == network.posteriors(whole).argmax(1)).float().mean()
    # Change between neighbouring frames, in the fades and at hard cuts in their middle, relative to the same frames of
    # the whole recording. 1 means no visible join.
    fades, cuts = [], []
    for (start, x), (following, y) in itertools.pairwise(parts):
        last = start + len(x) - MARGIN
        first = last - (config.shared - 2 * MARGIN)
        middle = (first + last) // 2
        fades.append(
            joined[first - 1 : last + 1].diff(dim=0).norm(dim=1) / whole[first - 1 : last + 1].diff(dim=0).norm(dim=1)
        )
        cuts.append((y[middle - following] - x[middle - 1 - start]).norm() / (whole[middle] - whole[middle - 1]).norm())
    row = [f"{len(samples) / 16_000:.0f}", f"{relative.median():.1%}", f"{relative.quantile(0.95):.1%}", f"{same:.1%}"]
    row += [f"{torch.cat(fades).median():.2f}", f"{torch.stack(cuts).median():.2f}"]
    print(f"| {kind} | {' | '.join(row)} |")
