"""Speaker diarization: mixtures of two speakers of Libri2Mix."""

from collections.abc import Sequence

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.corpora.libri2mix import read_libri2mix
from sjepa.evaluate.superb.diarization import DiarizationTask
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import DER, FRAME_ACCURACY, FRAME_DER
from sjepa.evaluate.superb.records import Utterance, reduce_folds, sample_evenly
from sjepa.evaluate.superb.submission import Submission
from sjepa.evaluate.superb.task import Recipe


def build(entry: Entry, request: Request) -> DiarizationTask:
    folds, turns = read_libri2mix(request.data)
    if request.lite:
        folds = reduce_folds(folds, sample_recordings)
        turns = {u.name: turns[u.name] for u in folds[0].test}
    return entry.task(DiarizationTask, request, folds, turns=turns)


def sample_recordings(chunks: Sequence[Utterance], most: int) -> list[Utterance]:
    """Return all chunks of at most `most` recordings, evenly spaced. The error rate needs whole recordings."""
    kept = set(sample_evenly(list(dict.fromkeys(chunk.name for chunk in chunks)), most))
    return [chunk for chunk in chunks if chunk.name in kept]


ENTRY = Entry(
    name="sd",
    title="speaker diarization",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=30_000, lr=1e-4, batch=8, accumulate=4, evaluate_every=500),
    lite_steps=1000,
    metrics=(DER, FRAME_DER, FRAME_ACCURACY),
    selects="frame_accuracy",
    build=build,
    corpus=CorpusLocation(("train/segments", "data/train/segments"), ("Libri2Mix", "libri2mix")),
    submission=Submission({"scoring/predictions": "sd_public"}),
)
