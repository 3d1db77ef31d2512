"""Emotion recognition: IEMOCAP, one fold per session."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.corpora.iemocap import read_iemocap
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import ACCURACY
from sjepa.evaluate.superb.submission import Submission
from sjepa.evaluate.superb.task import Recipe


def build(entry: Entry, request: Request) -> ClassTask:
    return make_class_task(entry, request, read_iemocap(request.data))


ENTRY = Entry(
    name="er",
    title="emotion recognition",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=30_000, lr=1e-4, batch=4, accumulate=8, evaluate_every=1000),
    lite_steps=1000,
    metrics=(ACCURACY,),
    build=build,
    corpus=CorpusLocation(("Session1",), ("IEMOCAP", "IEMOCAP_full_release")),
    submission=Submission(
        {f"test_fold{fold}_predict.txt": f"er_fold{fold}_public/predict.txt" for fold in range(1, 6)},
        lambda u, predicted: f"{u.path.stem} {predicted[0][:3]}",  # neu, hap, ang, sad
    ),
)
