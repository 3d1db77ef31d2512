"""Which measure without labels finds the layer whose clusters agree best with phones?

python benchmarks/layer_measures.py CORPORA ENCODER...   # -> benchmarks/results/layer-measures.json
python benchmarks/layer_measures.py                      # print the table of docs/study-trials.md from the JSON

Every 30th utterance of dev-clean. PNMI: phones in 100 k-means clusters of features that are centred per utterance.
Effective rank: of 2,000 frames, as training measures it. Coherence: mutual information of the clusters of two frames
that are 80 ms apart, as a share of the clusters' entropy.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from output import merge_entries, to_markdown
from torch import Tensor

from sjepa.audio.io import read_audio
from sjepa.evaluate.agreement import measure_agreement
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.upstream import load_upstream
from sjepa.files import read_json
from sjepa.progress import track
from sjepa.targets.kmeans import find_nearest, kmeans
from sjepa.targets.layer import effective_rank

RESULTS = Path(__file__).parent / "results" / "layer-measures.json"
EVERY, CLUSTERS, ITERATIONS, FRAMES, APART = 30, 100, 10, 2000, 4


def examine(encoder: str, corpora: Path) -> list[dict[str, Any]]:
    """Measure all layers of an encoder."""
    upstream, corpus = load_upstream(encoder), read_labelled(corpora)[::EVERY]
    states, phones = [], []
    for item in track(corpus, f"Features of {upstream.name}", len(corpus)):
        (found,) = upstream.extract([read_audio(item.utterance.path)])
        states.append(found)
        phones.append(item.frame_phones(found.shape[1]))
    return [measure_layer([found[layer] for found in states], phones) for layer in range(1, upstream.states)]


def measure_layer(utterances: list[Tensor], phones: list[np.ndarray]) -> dict[str, Any]:
    """Measure one layer from the features of each utterance, (T, D)."""
    frames = torch.cat(utterances)
    sample = torch.randperm(len(frames), generator=torch.Generator().manual_seed(0))[:FRAMES]
    centred = [x - x.mean(0) for x in utterances]
    means = kmeans(torch.cat(centred), CLUSTERS, ITERATIONS, torch.Generator().manual_seed(0))
    units = [find_nearest(x, means).numpy() for x in centred]
    before, after = (np.concatenate(parts) for parts in zip(*((u[:-APART], u[APART:]) for u in units), strict=True))
    return {
        "pnmi": round(measure_agreement(np.concatenate(units), np.concatenate(phones))["pnmi"], 3),
        "effective_rank": round(float(effective_rank(frames[sample])), 1),
        "coherence": round(measure_agreement(before, after)["pnmi"], 3),
    }


def make_table() -> str:
    """Make the table of docs/study.md."""
    rows = [
        (name, str(number), f"{layer['pnmi']:.3f}", f"{layer['effective_rank']:.0f}", f"{layer['coherence']:.3f}")
        for name, layers in read_json(RESULTS).items()
        for number, layer in enumerate(layers)
    ]
    return to_markdown(("encoder", "layer", "PNMI", "effective rank", "coherence"), rows)


def main() -> None:
    if len(sys.argv) > 1:
        merge_entries(RESULTS, {Path(encoder).name: examine(encoder, Path(sys.argv[1])) for encoder in sys.argv[2:]})
    print(make_table())


if __name__ == "__main__":
    main()
