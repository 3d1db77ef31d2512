"""Phoneme recognition: LibriSpeech with phonemes from a lexicon or an alignment."""

from collections.abc import Sequence
from pathlib import Path

from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import PER
from sjepa.evaluate.superb.records import Fold, relabel
from sjepa.evaluate.superb.sequences import Batching, SequenceTask
from sjepa.evaluate.superb.submission import Submission, format_transcript
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import Phones

# s3prl's lexicons. The second has the words that the first lacks.
LEXICONS = ("librispeech-lexicon-200k-g2p.txt", "librispeech-lexicon-allothers-g2p.txt")


def build(entry: Entry, request: Request) -> SequenceTask:
    """Build the task. SUPERB's phonemes come from a lexicon with stress. The lite protocol also accepts alignments."""
    data = request.data
    fold = librispeech.read_subset_fold(data, request.subset) if request.lite else librispeech.read_standard_fold(data)
    default_lexicons = tuple(data / name for name in LEXICONS)
    lexicons = request.lexicons or (
        default_lexicons if not request.lite and all(file.is_file() for file in default_lexicons) else ()
    )
    if lexicons:
        fold, phones = pronounce(fold, lexicons), Phones()
    elif request.lite:
        fold, phones = align(fold, request)
    else:
        raise UserError(f"phoneme recognition needs pronunciations: --lexicon {' --lexicon '.join(LEXICONS)}")
    batching = Batching.BY_LENGTH if request.lite else Batching.BY_LABEL
    return entry.task(SequenceTask, request, [fold], symbols=phones, batching=batching)


def pronounce(fold: Fold, lexicons: Sequence[Path]) -> Fold:
    """Replace the words of the labels by the phones of the lexicons."""
    words = librispeech.read_lexicons(lexicons)
    missing = {word for u in fold.utterances for word in str(u.label).split()} - words.keys()
    if missing:
        names, verb = " and ".join(map(str, lexicons)), "lacks" if len(lexicons) == 1 else "lack"
        raise UserError(f"{names} {verb} {len(missing)} words of the transcripts, first {min(missing)}")
    return relabel(fold, {u.name: " ".join(words[w] for w in str(u.label).split()) for u in fold.utterances})


def align(fold: Fold, request: Request) -> tuple[Fold, Phones]:
    """Replace the labels by aligned phones without stress. Return the fold and the set of phones."""
    aligned = librispeech.read_aligned_phones(request.data)
    if not aligned:
        raise UserError(librispeech.describe_missing_phones(request.data, request.subset))
    unlabelled = [u.name for u in fold.utterances if u.name not in aligned]
    if unlabelled:
        raise UserError(f"audio without labels: {len(unlabelled)} utterances have no phones, first {unlabelled[0]}")
    labels = {u.name: librispeech.merge_phones(aligned[u.name]) for u in fold.utterances}
    return relabel(fold, labels), Phones(tuple(sorted({p for text in labels.values() for p in text.split()})))


ENTRY = Entry(
    name="pr",
    title="phoneme recognition",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=100_000, lr=1e-2, batch=16, accumulate=2, evaluate_every=1000),
    lite_steps=1000,
    metrics=(PER,),
    build=build,
    corpus=CorpusLocation(("LibriSpeech", "train-clean-100", "dev-clean")),
    submission=Submission({"test-hyp.ark": "pr_public/predict.ark"}, format_transcript),
)
