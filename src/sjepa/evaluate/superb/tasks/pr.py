"""Phoneme recognition: LibriSpeech's transcripts, pronounced by a lexicon or aligned."""

from collections.abc import Sequence
from pathlib import Path

from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.entry import Corpus, Entry, Request
from sjepa.evaluate.superb.metrics import PER
from sjepa.evaluate.superb.records import Fold, relabel
from sjepa.evaluate.superb.sequences import Batched, SequenceTask
from sjepa.evaluate.superb.submission import Submission, spoken
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import Phones

# s3prl's, one after the other: the second has the words that the first lacks.
LEXICONS = ("librispeech-lexicon-200k-g2p.txt", "librispeech-lexicon-allothers-g2p.txt")


def build(entry: Entry, request: Request) -> SequenceTask:
    """SUPERB's phonemes come from a lexicon with stress; the lite protocol also takes aligned ones."""
    data = request.data
    fold = librispeech.subset_fold(data, request.subset) if request.lite else librispeech.standard_fold(data)
    beside = tuple(data / name for name in LEXICONS)
    lexicons = request.lexicons or (beside if not request.lite and all(file.is_file() for file in beside) else ())
    if lexicons:
        fold, phones = pronounce(fold, lexicons), Phones()
    elif request.lite:
        fold, phones = align(fold, request)
    else:
        raise UserError(f"phoneme recognition needs its pronunciations: --lexicon {' --lexicon '.join(LEXICONS)}")
    batched = Batched.BY_LENGTH if request.lite else Batched.BY_LABEL
    return entry.task(SequenceTask, request, [fold], symbols=phones, batched=batched)


def pronounce(fold: Fold, lexicons: Sequence[Path]) -> Fold:
    """Words of the labels as the phones of the lexicons."""
    words = librispeech.read_lexicons(lexicons)
    missing = {word for u in fold.utterances for word in str(u.label).split()} - words.keys()
    if missing:
        names, verb = " and ".join(map(str, lexicons)), "lacks" if len(lexicons) == 1 else "lack"
        raise UserError(f"{names} {verb} {len(missing)} words of the transcripts, first {min(missing)}")
    return relabel(fold, {u.name: " ".join(words[w] for w in str(u.label).split()) for u in fold.utterances})


def align(fold: Fold, request: Request) -> tuple[Fold, Phones]:
    """Phones as they were aligned, without stress, and the set of them."""
    aligned = librispeech.aligned_phones(request.data)
    if not aligned:
        raise UserError(librispeech.phones_missing(request.data, request.subset))
    unlabelled = [u.name for u in fold.utterances if u.name not in aligned]
    if unlabelled:
        raise UserError(f"audio without labels: {len(unlabelled)} utterances have no phones, first {unlabelled[0]}")
    labels = {u.name: librispeech.phone_sequence(aligned[u.name]) for u in fold.utterances}
    return relabel(fold, labels), Phones(tuple(sorted({p for text in labels.values() for p in text.split()})))


ENTRY = Entry(
    name="pr",
    title="phoneme recognition",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=100_000, lr=1e-2, batch=16, accumulate=2, evaluate_every=1000),
    lite_steps=1000,
    metrics=(PER,),
    build=build,
    corpus=Corpus(("LibriSpeech", "train-clean-100", "dev-clean")),
    submission=Submission({"test-hyp.ark": "pr_public/predict.ark"}, spoken),
)
