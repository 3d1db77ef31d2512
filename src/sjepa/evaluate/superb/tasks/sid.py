"""Speaker identification: VoxCeleb1."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.corpora.voxceleb import read_voxceleb
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import ACCURACY
from sjepa.evaluate.superb.records import Fold, Label, Utterance
from sjepa.evaluate.superb.submission import Submission, join_path
from sjepa.evaluate.superb.task import Recipe

LITE_SPEAKERS = 100


def build(entry: Entry, request: Request) -> ClassTask:
    folds = read_voxceleb(request.data)
    if request.lite:
        folds = [limit_speakers(fold, LITE_SPEAKERS) for fold in folds]
    return make_class_task(entry, request, folds)


def limit_speakers(fold: Fold, most: int) -> Fold:
    """Keep the first speakers, so that each has several training utterances."""
    kept = set(sorted({u.speaker for u in fold.train})[:most])
    train, dev, test = ([u for u in part if u.speaker in kept] for part in (fold.train, fold.dev, fold.test))
    return Fold(fold.name, train, dev, test)


def format_line(utterance: Utterance, speaker: Label) -> str:
    """Format a line such as `id10003-VIDEO-00001 id10003`."""
    return f"{join_path(utterance, 3).removesuffix(utterance.path.suffix)} {speaker[0]}"


ENTRY = Entry(
    name="sid",
    title="speaker identification",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=8, accumulate=4, evaluate_every=5000),
    lite_steps=2000,
    metrics=(ACCURACY,),
    build=build,
    corpus=CorpusLocation(("iden_split.txt", "veri_test_class.txt"), ("VoxCeleb1", "voxceleb1")),
    submission=Submission({"test_predict.txt": "sid_public/predict.txt"}, format_line),
)
