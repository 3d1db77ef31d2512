"""Acted emotions: RAVDESS, five folds by actor. Not part of SUPERB."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.corpora.manifest import read_ravdess
from sjepa.evaluate.superb.entry import Entry, Request
from sjepa.evaluate.superb.metrics import ACCURACY
from sjepa.evaluate.superb.task import Recipe


def build(entry: Entry, request: Request) -> ClassTask:
    return make_class_task(entry, request, read_ravdess(request.data))


ENTRY = Entry(
    name="ravdess",
    title="acted emotions",
    section=SectionKind.OTHER,
    recipe=Recipe(steps=30_000, lr=1e-4, batch=4, accumulate=8, evaluate_every=1000),
    lite_steps=1000,
    metrics=(ACCURACY,),
    build=build,
)
