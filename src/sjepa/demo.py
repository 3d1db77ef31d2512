"""The whole way on a small synthetic corpus: speech, both phases, probes, a page."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sjepa.analysis.missing import analyse_missing
from sjepa.audio.io import read_audio
from sjepa.audio.mfcc import MfccConfig, mfcc
from sjepa.config import Config, differences, load_preset
from sjepa.data.synthetic import synthesise_corpus
from sjepa.errors import UserError
from sjepa.evaluate.probes import (
    Features,
    chance,
    enough_utterances,
    frame_labels,
    phone_probe,
    utterance_probe,
)
from sjepa.model.encoder import Encoder
from sjepa.progress import track
from sjepa.report.page import write_page
from sjepa.runs.folder import RunFolder
from sjepa.train.loop import pretrain
from sjepa.train.run import Run

FRAMES = 15_000
ABOUT = {
    "phone": f"Logistic regression on {FRAMES:,} single frames, tested on voices that it did not hear, one split; "
    "`sjepa probe` takes more frames and splits.",
    "speaker": "Logistic regression on utterance means, random 80/20 splits.",
}


def demo(out: Path) -> bool:
    """Synthesise, pre-train, compare, and say what was learned; False when the training was stopped."""
    began = time.monotonic()
    config, run = load_preset("tiny"), RunFolder(out / "run")
    if run.exists and differences(run.config(), config):
        raise UserError(f"{out} holds a demo with other settings: remove it, or choose another --out")
    corpus = synthesise_corpus(out / "corpus")
    if not pretrain(config, corpus, run.path):
        return False
    results = compare(config, corpus, run)
    (out / "comparison.json").write_text(json.dumps(results, indent=1) + "\n")
    analyse_missing(run.path, corpus, "", utterances=8, sampled=100)
    page = write_page(run.path, out / "demo.html", results, title="S-JEPA on two CPU cores")
    print(
        f"\nDone in {(time.monotonic() - began) / 60:.1f} minutes. What was learned (linear probes on frozen features):"
    )
    for task in ("phone", "speaker"):
        line = ", ".join(f"{name} {score:.1%}" for name, score in results[task].items())
        print(f"  {task}: {line} (chance {results['chance'][task]:.1%})")
    print(f"The page with curves and comparison: {page}")
    print(f"The encoder: {run.encoder}")
    return True


def compare(config: Config, corpus: Path, run: RunFolder) -> dict[str, Any]:
    """Phone and speaker probes of the trained encoder, the same encoder untrained, and MFCC."""
    labels = [json.loads(line) for line in (corpus / "labels.jsonl").read_text().splitlines()]
    audio = [read_audio(corpus / label["path"]) for label in labels]
    speakers = [label["speaker"] for label in labels]
    systems = {
        "MFCC": mfcc_features(config.mfcc),
        "untrained encoder": last_layer(Run.start(config, torch.device("cpu")).model.encoder.eval()),
        "S-JEPA, phase 1": last_layer(Encoder.from_pretrained(run.phase_encoder(1))),
        "S-JEPA": last_layer(Encoder.from_pretrained(run.encoder)),
    }
    accuracy: dict[str, Any] = {"phone": {}, "speaker": {}}
    phones: list[np.ndarray] = []
    for name, extract in systems.items():
        features = [extract(samples) for samples in track(audio, f"Features: {name}", len(audio))]
        phones = [np.array(frame_labels(label["phones"], len(f))) for label, f in zip(labels, features, strict=True)]
        chosen = enough_utterances([len(f) for f in features], FRAMES, seed=0)
        frames, said = (np.concatenate([part[i] for i in chosen]) for part in (features, phones))
        owners = np.repeat([speakers[i] for i in chosen], [len(features[i]) for i in chosen])
        accuracy["phone"][name] = phone_probe(torch.from_numpy(frames), said, owners, splits=1).mean
        means = torch.from_numpy(np.stack([f.mean(0) for f in features]))
        accuracy["speaker"][name] = utterance_probe(means, speakers, splits=3).mean
    return accuracy | {"chance": {"phone": chance(np.concatenate(phones)), "speaker": chance(speakers)}, "about": ABOUT}


def mfcc_features(config: MfccConfig) -> Features:
    return lambda samples: mfcc(torch.from_numpy(samples)[None], config)[0].numpy()


def last_layer(encoder: Encoder) -> Features:
    @torch.inference_mode()
    def extract(samples: np.ndarray) -> np.ndarray:
        return encoder(torch.from_numpy(samples)[None]).last[0].numpy()

    return extract
