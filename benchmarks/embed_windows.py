"""Compare windowed features of `sjepa embed` with the encoder on the whole recording, and measure the joins.

    python benchmarks/embed_windows.py english-compact LibriSpeech/dev-clean --out benchmarks/results/embed-windows.json

Recordings of a few minutes are concatenated from the utterances of eight speakers, one per folder of AUDIO: one voice,
all voices, all voices at random levels (0 to -30 dB), and all voices with pauses of up to 20 s.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from output import to_markdown

from sjepa import Encoder
from sjepa.audio.io import SAMPLE_RATE, read_audio
from sjepa.data.corpus import audio_files
from sjepa.embed.network import Network
from sjepa.embed.window_config import MARGIN, WindowConfig
from sjepa.embed.windows import cut_windows, join_windows
from sjepa.model.moments import measure_moments
from sjepa.progress import track

SPEAKERS, UTTERANCES = 8, 24  # UTTERANCES in a recording
KINDS = ("one voice", "eight voices", "eight voices at levels from 0 to −30 dB", "eight voices, pauses of up to 20 s")


def make_recording(kind: str, speakers: list[list[str]], rng: np.random.Generator) -> np.ndarray:
    """Concatenate utterances of one speaker, or of all in random order."""
    each = UTTERANCES // len(speakers)
    mixed = rng.permutation([file for files in speakers for file in files[:each]]).tolist()
    pieces = []
    for file in speakers[0][:UTTERANCES] if kind == "one voice" else mixed:
        pieces.append(read_audio(file) * (10 ** (rng.uniform(-30, 0) / 20) if "levels" in kind else 1.0))
        if "pauses" in kind:
            pieces.append(1e-4 * rng.standard_normal(int(SAMPLE_RATE * rng.choice([0.2, 1, 4, 10, 20]))))
    return np.concatenate(pieces).astype(np.float32)


def compare(samples: np.ndarray, network: Network, config: WindowConfig) -> dict[str, float]:
    """Compare the frames of joined windows with those of the whole recording.

    Steps are changes between neighbouring frames, in the fades and at hard cuts in their middle, relative to the same
    frames of the whole recording. 1 means no visible join.
    """
    whole = network.features([samples])[0]
    moments = measure_moments([samples])
    parts = [(w.start, network.window_features(w.samples, moments)) for w in cut_windows([samples], config)]
    joined = torch.cat(list(join_windows(parts, config)))
    relative = (joined - whole).norm(dim=1) / whole.norm(dim=1)
    same = network.posteriors(joined).argmax(1) == network.posteriors(whole).argmax(1)
    fades, cuts = [], []
    for (start, x), (following, y) in itertools.pairwise(parts):
        last = start + len(x) - MARGIN
        first = last - (config.shared - 2 * MARGIN)
        middle = (first + last) // 2
        steps, expected = (frames[first - 1 : last + 1].diff(dim=0).norm(dim=1) for frames in (joined, whole))
        fades.append(steps / expected)
        cuts.append((y[middle - following] - x[middle - 1 - start]).norm() / (whole[middle] - whole[middle - 1]).norm())
    return {
        "seconds": len(samples) / SAMPLE_RATE,
        "difference_median": float(relative.median()),
        "difference_95": float(relative.quantile(0.95)),
        "same_unit": float(same.float().mean()),
        "step_in_fades": float(torch.cat(fades).median()),
        "step_at_a_hard_cut": float(torch.stack(cuts).median()),
    }


def to_row(kind: str, found: dict[str, float]) -> list[str]:
    shares = [f"{found[name]:.1%}" for name in ("difference_median", "difference_95", "same_unit")]
    return [
        kind,
        f"{found['seconds']:.0f}",
        *shares,
        f"{found['step_in_fades']:.2f}",
        f"{found['step_at_a_hard_cut']:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("audio", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    encoder = Encoder.from_pretrained(given.encoder).requires_grad_(False)
    network = Network(encoder, (encoder.config.layers,), torch.device("cpu"), "head")
    folders = [sorted(audio_files(folder, [])) for folder in sorted(given.audio.iterdir()) if folder.is_dir()]
    rng, rows = np.random.default_rng(0), {}
    for kind in track(KINDS, "Recordings", len(KINDS)):
        rows[kind] = compare(make_recording(kind, folders[:SPEAKERS], rng), network, WindowConfig())
    titles = ["recording", "seconds", "difference, median", "95%", "same unit", "step in fades", "step at a hard cut"]
    print(to_markdown(titles, [to_row(*row) for row in rows.items()]))
    if given.out:
        results: dict[str, Any] = {"encoder": given.encoder, "torch": torch.__version__, "rows": rows}
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
