"""What phones the mixture over MFCCs tells apart, with and without each utterance's mean.

python benchmarks/centred.py CORPORA     # LibriSpeech/dev-clean and its phones -> benchmarks/results/centred.json
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sjepa.audio.io import read_audio
from sjepa.audio.mfcc import MfccConfig, mfcc
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.units import agreement
from sjepa.progress import track
from sjepa.targets.fit import GmmConfig, fit_mixture

EVERY = 8  # utterances


def main() -> None:
    corpus = read_labelled(Path(sys.argv[1]))[::EVERY]
    audio = (torch.from_numpy(read_audio(item.utterance.path)) for item in corpus)
    features = [mfcc(samples[None], MfccConfig())[0] for samples in track(audio, "MFCCs", len(corpus))]
    phones = np.concatenate([item.frame_phones(len(x)) for item, x in zip(corpus, features, strict=True)])
    found: dict[str, Any] = {"utterances": len(corpus), "frames": len(phones)}
    for name, frames in (
        ("plain", torch.cat(features)),
        ("centred", torch.cat([x - x.mean(0) for x in features])),
        ("centred every 4 s", torch.cat([part - part.mean(0) for x in features for part in x.split(200)])),
    ):
        for components in (100, 500):
            units = fit_mixture(frames, components, GmmConfig(), seed=0)[0].posterior(frames).argmax(1)
            scores = agreement(units.numpy(), phones)
            found[f"{name}, K = {components}"] = scores
            print(
                f"{name:<18} K = {components}  PNMI {scores['pnmi']:.3f}  purity {scores['phone_purity']:.3f}",
                flush=True,
            )
    (Path(__file__).parent / "results" / "centred.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
