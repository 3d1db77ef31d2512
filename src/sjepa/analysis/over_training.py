"""What each checkpoint of a run predicts at masked frames, next to the targets."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sjepa.analysis.restored_run import RestoredRun
from sjepa.analysis.speech import Speech, excerpt_segments
from sjepa.audio.frames import STRIDE, frame_centres
from sjepa.audio.io import SAMPLE_RATE
from sjepa.data.masking import block_mask
from sjepa.runs.folder import RunFolder
from sjepa.train.run import Run

SEED = 0
EDGE, LONGEST = 0.25, 2.5  # seconds: cut from both ends, since training crops rarely include them; kept at most
LISTED = 40  # consecutive frames of the first utterance that are listed one by one


def analyse_over_training(folder: Path, speeches: list[Speech]) -> dict[str, Any]:
    """Compare predictions with targets at the masked frames of utterances, for every checkpoint of the run.

    All checkpoints see the same masks. The first utterance is listed frame by frame; the accuracy is over all of them.
    """
    run, speeches = RunFolder(folder), [inner_part(speech) for speech in speeches]
    moments = []
    for step in sorted(run.checkpoint_steps):
        restored = RestoredRun(folder, step=step).run
        found = [predict_components(restored, speech, index) for index, speech in enumerate(speeches)]
        mask, predicted, truth = (np.concatenate(parts) for parts in zip(*found, strict=True))
        counts = np.bincount(truth[mask], minlength=restored.targets.components)
        first = most_masked_frames(found[0][0])
        moments.append(
            {
                "step": step,
                "phase": restored.phase,
                "components": restored.targets.components,
                "accuracy": float((predicted == truth)[mask].mean()),
                "chance": float(counts.max() / counts.sum()),
                "predicted": found[0][1][first].tolist(),
                "truth": found[0][2][first].tolist(),
            }
        )
    listed = most_masked_frames(found[0][0])
    centres = frame_centres(len(found[0][0]))[listed]
    return {
        "subject": "over_training",
        "name": speeches[0].utterance.name,
        "text": speeches[0].text,
        "utterances": len(speeches),
        "masked_frames": int(mask.sum()),
        "seconds": np.round(centres, 3).tolist(),
        "phones": [phone_at(speeches[0], second) for second in centres],
        "mask": found[0][0][listed].tolist(),
        "moments": moments,
    }


@torch.inference_mode()
def predict_components(run: Run, speech: Speech, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mask, the predictor's most likely component and the target's most likely component of every frame."""
    longest = run.config.longest_frames * STRIDE
    clean = torch.from_numpy(speech.samples[:longest])[None]
    q, _ = run.targets(run.targets.frame_features(clean, run.active_layer))
    target = q[0]
    mask = block_mask(len(target), run.config.mask, np.random.default_rng((SEED, index)))
    hidden = torch.from_numpy(mask.copy())[None]
    logits = run.model.predict(run.model.encoder(clean, mask=hidden).last, hidden)[0]
    return mask, logits.argmax(1).numpy(), target.argmax(1).numpy()


def inner_part(speech: Speech) -> Speech:
    """Cut both ends off an utterance: they hold more silence than the crops in training."""
    seconds = len(speech.samples) / SAMPLE_RATE
    if seconds < 4 * EDGE:
        return speech
    length = min(LONGEST, seconds - 2 * EDGE)
    first = round(EDGE * SAMPLE_RATE)
    return dataclasses.replace(
        speech,
        start=speech.start + EDGE,
        samples=speech.samples[first : first + round(length * SAMPLE_RATE)],
        phones=excerpt_segments(speech.phones, EDGE, length),
        words=excerpt_segments(speech.words, EDGE, length),
    )


def most_masked_frames(mask: np.ndarray) -> slice:
    """The `LISTED` consecutive frames that include the most masked ones."""
    width = min(LISTED, len(mask))
    counts = np.convolve(mask, np.ones(width), mode="valid")
    start = int(counts.argmax())
    return slice(start, start + width)


def phone_at(speech: Speech, second: float) -> str:
    """The phone at a time in seconds; empty if the speech has no labels there."""
    return next((name for start, end, name in speech.phones if start <= second < end), "")
