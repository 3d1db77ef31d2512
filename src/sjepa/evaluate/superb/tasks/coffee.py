"""Spoken drink orders: an optional value for each slot. Not part of SUPERB."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.corpora.manifest import read_coffee
from sjepa.evaluate.superb.entry import Entry, Request
from sjepa.evaluate.superb.metrics import ACCURACY, SLOT_F1
from sjepa.evaluate.superb.task import Recipe


def build(entry: Entry, request: Request) -> ClassTask:
    return make_class_task(entry, request, read_coffee(request.data), optional=True)


ENTRY = Entry(
    name="coffee",
    title="drink orders",
    section=SectionKind.OTHER,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=32, accumulate=1, evaluate_every=5000),
    lite_steps=2000,
    metrics=(SLOT_F1, ACCURACY),
    build=build,
)
