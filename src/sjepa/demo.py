"""The whole pipeline on a small synthetic corpus: speech, both phases, probes, a report page."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sjepa.analysis.missing import SECONDS, analyse_missing
from sjepa.analysis.over_training import analyse_over_training
from sjepa.analysis.speech import CorpusLabels, find_utterances, read_speech
from sjepa.analysis.style import findings_file, save_findings
from sjepa.audio.io import read_audio
from sjepa.audio.mfcc import MfccConfig, mfcc
from sjepa.config import Config, differences
from sjepa.data.layouts.manifest import LABELS_FILE
from sjepa.data.synthetic import synthesise_corpus
from sjepa.durations import format_duration
from sjepa.errors import UserError
from sjepa.evaluate.alignments import frame_labels
from sjepa.evaluate.probes import (
    chance_accuracy,
    choose_utterances,
    phone_probe,
    utterance_probe,
)
from sjepa.files import contents
from sjepa.model.encoder import EncoderNetwork
from sjepa.progress import track
from sjepa.report.demo_comparison import DemoComparison, ProbedSystem, ProbedTask, Role
from sjepa.report.page import write_page
from sjepa.runs import checkpoint
from sjepa.runs.encoder import Encoder
from sjepa.runs.events import seconds_trained, select_events
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import load_preset
from sjepa.train.loop import pretrain
from sjepa.train.run import Run

Extract = Callable[[np.ndarray], np.ndarray]
"""Maps the samples of one utterance (float32, 16 kHz) to frames (T, D)."""
FRAMES, VOICES_HELD_OUT = 15_000, 2  # of the phone probe: frames, and splits that hold out different voices
MOMENTS = 6  # checkpoints at which masked prediction is shown
PREDICTED = 24  # utterances in which it is shown
ABOUT = {
    "phone": f"Logistic regression on {FRAMES:,} single frames, tested on voices that it was not trained on. Error "
    f"bars: standard deviation over {VOICES_HELD_OUT} splits with other voices held out; `sjepa probe` uses more.",
    "speaker": "Logistic regression on utterance means, random 80/20 splits. Error bars: standard deviation over 3 "
    "splits.",
}
INTRODUCTION = (
    "S-JEPA hides short stretches of speech and trains an encoder to predict what is there from the sound around them.",
    "It predicts soft cluster assignments: first of a Gaussian mixture over MFCCs, a classical description of "
    "the sound (phase 1), then of a mixture over the features of a slow copy of the encoder itself (phase 2).",
    "Training uses no labels. Afterwards, linear probes on the frozen encoder use labels to measure what the "
    "features contain.",
)
MEANING = (
    "Steps and audio processed: how often the weights were updated, and how much speech was used, including "
    "repetitions.",
    "Phone accuracy: a linear classifier names the phone of a single frame from the frozen features, for voices that "
    "it was not trained on. Higher than MFCC means that the encoder learned what sounds share across voices.",
    "Speaker accuracy: another linear classifier names the voice from an utterance's mean. MFCC describes the voice's "
    "timbre directly and is hard to beat here. An encoder that learns to distinguish sounds may lose some of it.",
    "Masked accuracy: how often the likeliest component at a hidden frame is the right one. Chance means always "
    "predicting the most frequent component. Components of phase 1 and phase 2 differ, so their accuracies cannot be "
    "compared directly.",
)
NEXT = {
    "Train on your own audio (a folder of wav, flac, ogg, opus or mp3) on this computer": (
        "sjepa pretrain --preset tiny --data my-audio/ --out runs/mine"
    ),
    "Train the full encoder, on a GPU": "sjepa pretrain --preset half-hour --data my-audio/ --out runs/mine",
    "See what it learned": "sjepa report runs/mine --data my-audio/",
    "Use it: features of recordings, or the encoder for other programs": (
        "sjepa embed recordings/ --encoder runs/mine --out features; sjepa export runs/mine --to hf my-encoder"
    ),
}


def demo(out: Path) -> bool:
    """Synthesise speech, pre-train, probe, and write a page. Return False if training was stopped."""
    began = time.monotonic()
    config, run = demo_config(), RunFolder(out / "run")
    if run.exists and differences(run.config(), config):
        raise UserError(f"{out} holds a demo with other settings: remove it, or choose another --out")
    # What a demo writes before its run exists. Later, users may keep further files next to the run.
    if not run.exists and {path.name for path in contents(out)} - {"corpus", "run"}:
        raise UserError(f"{out} is not empty and is not a demo: choose another --out")
    earlier = seconds_trained(run.events()) if run.log.is_file() else 0.0
    corpus = synthesise_corpus(out / "corpus")
    if not pretrain(config, corpus, run.path):
        return False
    show_masked_prediction(run, corpus)
    results = compare(config, corpus, run)
    analyse_missing(run.path, CorpusLabels(corpus, ""), utterances=8, sampled=100)
    page = write_page(run.path, out / "demo.html", results, title="S-JEPA demo")
    print(f"\nDone in {describe_duration(time.monotonic() - began, earlier)}. Linear probes on frozen features:")
    for task in results.tasks:
        line = ", ".join(f"{system.name} {system.accuracy:.1%}" for system in task.systems)
        print(f"  {task.name}: {line} (chance {task.chance:.1%})")
    for phase, accuracy, level in masked_accuracies(run):
        print(
            f"  masked frames, phase {phase}: {accuracy:.1%} right, {accuracy / level:.1f} times the {level:.1%} of "
            "always predicting the most frequent component"
        )
    print(f"The page with curves and comparison: {page}")
    print(f"The encoder: {run.encoder}")
    return True


def describe_duration(seconds: float, earlier: float) -> str:
    """Describe how long the demo took, including the training in `earlier` starts that were stopped."""
    before = f", including {format_duration(earlier)} in earlier starts" if earlier else ""
    return format_duration(seconds + earlier) + before


def demo_config() -> Config:
    """Return the tiny preset with more checkpoints, which are needed until masked prediction is analysed."""
    config = load_preset("tiny")
    every = -(-config.steps // MOMENTS)
    train = dataclasses.replace(config.train, checkpoint_every=every, keep_checkpoints=MOMENTS)
    return dataclasses.replace(config, train=train)


def show_masked_prediction(run: RunFolder, corpus: Path) -> None:
    """Write the predictions of every checkpoint at the same masked frames. Then remove the earlier checkpoints."""
    if findings_file(run.analysis, "over_training").is_file():
        return
    chosen = [read_speech(item, 0.0, SECONDS) for item in find_utterances(corpus, [], PREDICTED, "")]
    save_findings(analyse_over_training(run.path, chosen), run.analysis, "over_training")
    checkpoint.prune(run, run.step, 1, {phase.end for phase in run.config().schedule()})


def masked_accuracies(run: RunFolder) -> list[tuple[int, float, float]]:
    """Return each phase with its last masked accuracy and its chance level, the share of the largest component."""
    events = run.events()
    last = {line["phase"]: line["accuracy_masked"] for line in select_events(events, "train")}
    largest = {event["phase"]: max(event["share"]) for event in select_events(events, "clusters")}
    return [(phase, last[phase], largest[phase]) for phase in last if phase in largest]


def compare(config: Config, corpus: Path, run: RunFolder) -> DemoComparison:
    """Probe the trained encoder, the untrained encoder and MFCC for phones and speakers."""
    labels = [json.loads(line) for line in (corpus / LABELS_FILE).read_text("utf-8").splitlines()]
    audio = [read_audio(corpus / label["path"]) for label in labels]
    speakers = [label["speaker"] for label in labels]
    untrained = Run.start(config, torch.device("cpu")).model.encoder.eval()
    systems = (
        ("MFCC", Role.BASELINE, mfcc_features(config.mfcc)),
        ("untrained encoder", Role.BASELINE, last_layer(untrained)),
        ("S-JEPA, phase 1", Role.EARLIER, last_layer(Encoder.from_pretrained(run.phase_encoder(1)))),
        ("S-JEPA", Role.OURS, last_layer(Encoder.from_pretrained(run.encoder))),
    )
    probed: dict[str, list[ProbedSystem]] = {"phone": [], "speaker": []}
    phones: list[np.ndarray] = []
    for name, role, extract in systems:
        features = [extract(samples) for samples in track(audio, f"Features: {name}", len(audio))]
        phones = [np.array(frame_labels(label["phones"], len(f))) for label, f in zip(labels, features, strict=True)]
        chosen = choose_utterances([len(f) for f in features], FRAMES, seed=0)
        frames, names = (np.concatenate([part[i] for i in chosen]) for part in (features, phones))
        owners = np.repeat([speakers[i] for i in chosen], [len(features[i]) for i in chosen])
        means = torch.from_numpy(np.stack([f.mean(0) for f in features]))
        found = {
            "phone": phone_probe(torch.from_numpy(frames), names, owners, splits=VOICES_HELD_OUT),
            "speaker": utterance_probe(means, speakers, splits=3),
        }
        for task, scores in found.items():
            probed[task].append(ProbedSystem(name, role, scores.mean, scores.deviation))
    chance = {"phone": chance_accuracy(np.concatenate(phones)), "speaker": chance_accuracy(speakers)}
    tasks = [ProbedTask(task, scored, chance[task], ABOUT[task]) for task, scored in probed.items()]
    return DemoComparison(tasks, INTRODUCTION, MEANING, NEXT)


def mfcc_features(config: MfccConfig) -> Extract:
    return lambda samples: mfcc(torch.from_numpy(samples)[None], config)[0].numpy()


def last_layer(encoder: EncoderNetwork) -> Extract:
    """Return a function that computes the last layer of an encoder."""

    @torch.inference_mode()
    def extract(samples: np.ndarray) -> np.ndarray:
        return encoder(torch.from_numpy(samples)[None]).last[0].numpy()

    return extract
