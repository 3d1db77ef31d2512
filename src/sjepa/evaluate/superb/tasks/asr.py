"""Automatic speech recognition: characters of LibriSpeech, or of your own corpus."""

from sjepa.data.layouts import detect_layout
from sjepa.data.layouts.manifest import LABELS_FILE
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.alphabet import Alphabet, spell
from sjepa.evaluate.superb.entry import CorpusLocation, Entry, Request
from sjepa.evaluate.superb.metrics import CER, WER
from sjepa.evaluate.superb.sequences import LITE_WIDTH, WIDTH, SequenceTask
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.submission import Submission, format_transcript
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import Characters
from sjepa.evaluate.superb.user_corpus import is_user_corpus, label_items, read_items, split_corpus

UNTRANSCRIBED = ("librilight", "folder")  # layouts without transcripts


def build(entry: Entry, request: Request) -> SequenceTask:
    if is_user_corpus(request.data, request.subset, *librispeech.STANDARD, "LibriSpeech"):
        return build_user_task(entry.rename_for_corpus(request.data), request)
    refuse_untranscribed(request)
    if request.lite:
        fold = librispeech.read_subset_fold(request.data, request.subset)
    else:
        fold = librispeech.read_standard_fold(request.data)
    width = LITE_WIDTH if request.lite else WIDTH
    return entry.task(SequenceTask, request, [fold], symbols=Characters(), recurrent=width, augment=SpecAugment())


def refuse_untranscribed(request: Request) -> None:
    """Raise UserError for a folder of audio that is neither LibriSpeech nor another corpus with transcripts."""
    data, subsets = request.data, (request.subset, *librispeech.STANDARD)
    if data.name in subsets or any((data / place).is_dir() for place in ("LibriSpeech", *subsets)):
        return
    if detect_layout(str(data)) in UNTRANSCRIBED:
        raise UserError(
            f"no transcripts found for {data}: give LibriSpeech ({request.subset}/SPEAKER/CHAPTER/*.trans.txt), an "
            f"index or a list (.csv, .tsv, .jsonl, {LABELS_FILE}) with a text column, or Kaldi folders with a file text"
        )


def build_user_task(entry: Entry, request: Request) -> SequenceTask:
    """Build the task for any transcribed corpus, with the characters of its training part."""
    items = read_items(request.data)
    fold = split_corpus(request.data, label_items(request.data, items, lambda item: spell(item.text) or None, "text"))
    symbols = Alphabet.from_texts(str(u.label) for u in fold.train)
    width = LITE_WIDTH if request.lite else WIDTH
    return entry.task(SequenceTask, request, [fold], symbols=symbols, recurrent=width, augment=SpecAugment())


ENTRY = Entry(
    name="asr",
    title="speech recognition",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=16, accumulate=1, evaluate_every=2000),
    lite_steps=3000,
    metrics=(WER, CER),
    build=build,
    corpus=CorpusLocation(("LibriSpeech", "train-clean-100", "dev-clean")),
    submission=Submission(
        {"test-clean-noLM-hyp.ark": "asr_public/predict.ark", "test-clean-LM-hyp.ark": "asr_lm_public/predict.ark"},
        format_transcript,
        decoded="test-clean-LM-hyp.ark",
    ),
    language_model=True,
    reads_user_corpora=True,
)
