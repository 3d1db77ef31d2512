"""Slot filling: Audio SNIPS as characters with marks around slot values."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.corpora.snips import find_snips_folder, read_snips
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import SLOT_TYPE_F1, SLOT_VALUE_CER
from sjepa.evaluate.superb.records import reduce_folds, sample_evenly
from sjepa.evaluate.superb.sequences import LITE_WIDTH, WIDTH, Batching, SequenceTask
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.submission import Submission, format_transcript
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import SlotCharacters, read_slot_names


def build(entry: Entry, request: Request) -> SequenceTask:
    folds = read_snips(request.data)
    folds = reduce_folds(folds, sample_evenly) if request.lite else folds
    symbols = SlotCharacters(read_slot_names(find_snips_folder(request.data) / "slots.txt"))
    width = LITE_WIDTH if request.lite else WIDTH
    return entry.task(
        SequenceTask,
        request,
        folds,
        symbols=symbols,
        recurrent=width,
        augment=SpecAugment(),
        batching=Batching.BY_LENGTH if request.lite else Batching.BY_LABEL,
    )


ENTRY = Entry(
    name="sf",
    title="slot filling",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=32, accumulate=1, evaluate_every=2000),
    lite_steps=2000,
    metrics=(SLOT_TYPE_F1, SLOT_VALUE_CER),
    build=build,
    corpus=CorpusLocation(("SNIPS", "all.iob.snips.txt")),
    submission=Submission({"test-hyp.ark": "sf_public/predict.ark"}, format_transcript),
)
