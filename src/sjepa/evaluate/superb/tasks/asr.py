"""Automatic speech recognition: characters of LibriSpeech's transcripts."""

from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb import librispeech
from sjepa.evaluate.superb.entry import Entry, Request
from sjepa.evaluate.superb.metrics import CER, WER
from sjepa.evaluate.superb.sequences import LITE_WIDTH, WIDTH, SequenceTask
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import Characters


def build(entry: Entry, request: Request) -> SequenceTask:
    fold = librispeech.protocol_fold(request.data, request.lite)
    width = LITE_WIDTH if request.lite else WIDTH
    return entry.task(SequenceTask, request, [fold], symbols=Characters(), recurrent=width, augment=SpecAugment())


ENTRY = Entry(
    name="asr",
    title="speech recognition",
    section=SectionKind.SUPERB,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=16, accumulate=1, evaluate_every=2000),
    lite_steps=3000,
    metrics=(WER, CER),
    build=build,
    language_model=True,
)
