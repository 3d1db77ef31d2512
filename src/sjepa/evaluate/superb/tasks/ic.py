"""Intent classification: Fluent Speech Commands, three slots that must all be correct."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.corpora.fluent_commands import read_fluent_commands
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import ACCURACY
from sjepa.evaluate.superb.submission import Submission
from sjepa.evaluate.superb.task import Recipe


def build(entry: Entry, request: Request) -> ClassTask:
    return make_class_task(entry, request, read_fluent_commands(request.data))


ENTRY = Entry(
    name="ic",
    title="intent classification",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=32, accumulate=1, evaluate_every=5000),
    lite_steps=2000,
    metrics=(ACCURACY,),
    build=build,
    corpus=CorpusLocation(("fluent_speech_commands_dataset", "data/train_data.csv")),
    submission=Submission(
        {"test_predict.csv": "ic_public/predict.csv"}, lambda u, predicted: ",".join((u.path.stem, *predicted))
    ),
)
