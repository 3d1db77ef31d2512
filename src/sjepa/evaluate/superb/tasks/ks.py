"""Keyword spotting: Speech Commands v0.01, with balanced classes in training and on dev."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.corpora.speech_commands import read_speech_commands
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import ACCURACY, BALANCED_ACCURACY
from sjepa.evaluate.superb.records import sample_each_label
from sjepa.evaluate.superb.submission import Submission, join_path
from sjepa.evaluate.superb.task import Recipe


def build(entry: Entry, request: Request) -> ClassTask:
    folds = read_speech_commands(request.data)
    return make_class_task(entry, request, folds, choose=sample_each_label, balanced=True)


ENTRY = Entry(
    name="ks",
    title="keyword spotting",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=32, accumulate=1, evaluate_every=5000),
    lite_steps=1000,
    metrics=(ACCURACY, BALANCED_ACCURACY),
    selects="balanced_accuracy",
    build=build,
    corpus=CorpusLocation(("speech_commands_v0.01",), ("speech_commands", "SpeechCommands")),
    submission=Submission(
        {"test_predict.txt": "ks_public/predict.txt"}, lambda u, predicted: f"{join_path(u, 2)} {predicted[0]}"
    ),
)
