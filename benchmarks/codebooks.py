"""Agreement of codebooks with phones: mixtures and k-means on MFCCs and on encoder layers.

Features are plain, centred, joined with their neighbours, or projected to principal or discriminant directions.

CORPORA contains LibriSpeech/dev-clean and its phones. An eighth of it is used.
Results: benchmarks/results/codebooks.json.

python benchmarks/codebooks.py CORPORA           # on MFCCs
python benchmarks/codebooks.py CORPORA ENCODER   # also centred mixtures on layers of an encoder
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sjepa import DiagonalGMM
from sjepa.audio.io import read_audio
from sjepa.audio.mfcc import MfccConfig, add_context, mfcc
from sjepa.evaluate.agreement import measure_agreement
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.upstream import load_upstream
from sjepa.files import write_whole
from sjepa.progress import track
from sjepa.targets.fit import GmmConfig, find_clusters, fit_kmeans, fit_mixture
from sjepa.targets.projection import Projection

EVERY = 8  # use every eighth utterance
CONTEXTS = (0, 1, 2, 4)  # frames on each side
MFCC_DIRECTIONS, DIRECTIONS = 40, 64


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    corpus = read_labelled(Path(sys.argv[1]))[::EVERY]
    audio = [read_audio(item.utterance.path) for item in corpus]
    features = [mfcc(torch.from_numpy(x)[None], MfccConfig())[0] for x in track(audio, "MFCCs", len(audio))]
    phones = np.concatenate([item.frame_phones(len(x)) for item, x in zip(corpus, features, strict=True)])
    plain, centred = torch.cat(features), torch.cat([x - x.mean(0) for x in features])
    kept = Path(__file__).parent / "results" / "codebooks.json"
    found: dict[str, Any] = json.loads(kept.read_text()) | {"utterances": len(corpus), "frames": len(phones)}
    for name, frames in (
        ("plain", plain),
        ("centred", centred),
        ("centred every 4 s", torch.cat([part - part.mean(0) for x in features for part in x.split(200)])),
    ):
        for components in (100, 500):
            mixture = fit_mixture(frames, components, GmmConfig(), seed=0)[0]
            record(found, f"{name}, K = {components}", mixture, frames, phones)
    for context in CONTEXTS:
        joined = [add_context(x[None], context)[0] for x in features]
        wide = torch.cat([x - x.mean(0) for x in joined])
        for components in (100, 500):
            record_directions(found, f"centred, context {context}", wide, MFCC_DIRECTIONS, components, phones)
    even = centred / centred.std(0)
    for name, frames in (("plain", plain), ("centred", centred), ("centred, unit variances", even)):
        record(found, f"k-means, {name}, K = 500", fit_kmeans(frames, 500, GmmConfig(), seed=0)[0], frames, phones)
    for name, frames in (("centred", centred), ("centred, unit variances", even)):
        codebook = fit_kmeans(frames, 500, GmmConfig(kmeans_iterations=25), seed=0)[0]
        record(found, f"k-means, {name}, 25 passes, K = 500", codebook, frames, phones)
    clusters = fit_mixture(centred, 500, GmmConfig(em_iterations=0), seed=0)[0]
    record(found, "weights and variances of k-means, centred, K = 500", clusters, centred, phones)
    for encoder in sys.argv[2:]:
        upstream = load_upstream(encoder, "auto")
        batches = track(
            (audio[i : i + 4] for i in range(0, len(audio), 4)), f"Features of {encoder}", -(-len(audio) // 4)
        )
        extracted = [states.half() for batch in batches for states in upstream.extract(batch)]
        for state in range(1, upstream.states):
            frames = torch.cat([x[state].float() - x[state].float().mean(0) for x in extracted])
            name = f"{Path(encoder).name}, layer {state - 1}, centred"
            record(found, f"{name}, K = 500", fit_mixture(frames, 500, GmmConfig(), seed=0)[0], frames, phones)
            record_directions(found, name, frames, DIRECTIONS, 500, phones)
    write_whole(kept, json.dumps(found, indent=1) + "\n")


def record_directions(
    found: dict[str, Any], name: str, frames: Tensor, count: int, components: int, phones: np.ndarray
) -> None:
    """Measure mixtures over the principal and over the discriminant directions of frames."""
    classes = find_clusters(frames, components, GmmConfig(), seed=0)
    size = min(count, frames.shape[1])
    for kind, known in (("principal", None), ("discriminant", classes)):
        projected = Projection(frames.shape[1], size).fit(frames, known)
        mixture = fit_mixture(projected, components, GmmConfig(), seed=0)[0]
        record(found, f"{name}, {size} {kind} directions, K = {components}", mixture, projected, phones)


def record(found: dict[str, Any], name: str, codebook: DiagonalGMM, frames: Tensor, phones: np.ndarray) -> None:
    """Measure a codebook, add it to the results and print it."""
    units = torch.cat([codebook.posterior(part).argmax(1) for part in frames.split(16_384)])
    found[name] = scores = measure_agreement(units.cpu().numpy(), phones)
    print(f"{name:<64} PNMI {scores['pnmi']:.3f}  purity {scores['phone_purity']:.3f}", flush=True)


if __name__ == "__main__":
    main()
