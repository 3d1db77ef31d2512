"""Masked prediction over training: every checkpoint sees the same masks."""

from pathlib import Path

import numpy as np
from analysed import corpus, trained

from sjepa.analysis.over_training import (
    analyse_over_training,
    inner_part,
    most_masked_frames,
    predict_components,
)
from sjepa.analysis.restored_run import RestoredRun
from sjepa.analysis.speech import find_utterances, read_speech
from sjepa.runs.folder import RunFolder


def test_every_checkpoint_is_listed_with_its_accuracy() -> None:
    speeches = [read_speech(item, 0.0, 4.0) for item in find_utterances(corpus(), [], 3, "")]
    found = analyse_over_training(Path(trained()), speeches)
    folder = RunFolder(trained())
    assert [moment["step"] for moment in found["moments"]] == sorted(folder.checkpoint_steps)
    last = found["moments"][-1]
    run = RestoredRun(Path(trained()), step=last["step"]).run
    right = total = 0
    for index, speech in enumerate(speeches):
        mask, predicted, truth = predict_components(run, inner_part(speech), index)
        right, total = right + int((predicted == truth)[mask].sum()), total + int(mask.sum())
    assert last["accuracy"] == right / total
    assert found["masked_frames"] == total
    assert len(found["phones"]) == len(found["mask"]) == len(last["predicted"]) == len(last["truth"])
    assert set(found["phones"]) <= {"a", "e", "i", "o", "sil"}


def test_the_stretch_has_the_most_masked_frames() -> None:
    mask = np.zeros(100, dtype=bool)
    mask[60:70] = True
    shown = most_masked_frames(mask)
    assert mask[shown].sum() == 10
    assert most_masked_frames(mask[:5]) == slice(0, 5)
