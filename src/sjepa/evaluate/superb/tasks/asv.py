"""Speaker verification: VoxCeleb1. An x-vector is trained on the dev speakers and tested on trials of the others."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sjepa.audio.io import SAMPLE_RATE, read_audio
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.corpora.voxceleb import TRIALS, Trial, check_trials, read_speakers, read_trials
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import EER
from sjepa.evaluate.superb.records import LITE_UTTERANCES, Fold, Utterance, sample_evenly
from sjepa.evaluate.superb.sound import prepare_waveform
from sjepa.evaluate.superb.submission import Submission
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.verification import VerificationTask
from sjepa.progress import say, track

SHORTEST = 2 * SAMPLE_RATE  # after removing silence
LITE_SPEAKERS, LITE_DEV_SPEAKERS, LITE_TRIALS = 100, 20, 1000


def build(entry: Entry, request: Request) -> VerificationTask:
    """Build the task. The full protocol selects on the test trials, because SUPERB has no others.

    The lite protocol selects on trials of held-out training speakers.
    """
    train = read_speakers(request.data)
    trials, test = read_trials(request.data)
    if not request.lite:
        fold = Fold("VoxCeleb1 verification", drop_short(train), test, test)
        return entry.task(VerificationTask, request, [fold], trials={"dev": trials, "test": trials})
    names = sorted({u.speaker for u in train})[: LITE_SPEAKERS + LITE_DEV_SPEAKERS]
    held_out = set(names[-max(2, min(LITE_DEV_SPEAKERS, len(names) // 5)) :])
    most, few, _ = LITE_UTTERANCES
    fold = Fold(
        "VoxCeleb1 verification",
        drop_short(sample_evenly([u for u in train if u.speaker in set(names) - held_out], most)),
        sample_evenly([u for u in train if u.speaker in held_out], few),
        test,
    )
    return entry.task(VerificationTask, request, [fold], trials={"dev": draw_trials(fold.dev), "test": trials})


def drop_short(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Keep utterances with more than two seconds of speech, as in s3prl. This reads every file."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(measure_speech, utterances)
        lengths = list(track(found, "Measuring speech without silence", len(utterances)))
    kept = [u for u, length in zip(utterances, lengths, strict=True) if length > SHORTEST]
    if len(kept) < len(utterances):
        say(f"{len(utterances) - len(kept)} of {len(utterances)} training utterances are shorter than 2 s and left out")
    if not kept:
        raise UserError("no training utterance has more than 2 s of speech")
    return kept


def measure_speech(utterance: Utterance) -> int:
    return len(prepare_waveform(read_audio(utterance.path), utterance.sound))


def draw_trials(utterances: Sequence[Utterance]) -> list[Trial]:
    """Draw random trials, half of them with the same speaker."""
    generator = np.random.default_rng(0)
    trials = []
    for number in range(LITE_TRIALS):
        first = utterances[int(generator.integers(len(utterances)))]
        same = number % 2 == 0
        others = [u for u in utterances if (u.speaker == first.speaker) == same and u.name != first.name]
        if others:
            trials.append(Trial(same, first.name, others[int(generator.integers(len(others)))].name))
    check_trials(trials, "the held-out speakers")
    return trials


ENTRY = Entry(
    name="asv",
    title="speaker verification",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=10, accumulate=5, evaluate_every=10_000),
    lite_steps=1000,
    metrics=(EER,),
    build=build,
    corpus=CorpusLocation(TRIALS, ("VoxCeleb1", "voxceleb1")),
    submission=Submission({"test_predict.txt": "sv_public/predict.txt"}),
)
