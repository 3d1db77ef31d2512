"""Tagging of words in any transcribed corpus, recognised together with the words."""

from collections.abc import Sequence
from pathlib import Path

from sjepa.data.layouts import Item
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.alphabet import collect_letters
from sjepa.evaluate.superb.entry import Entry, LabelColumns, Request
from sjepa.evaluate.superb.metrics import SLOT_TYPE_F1, SLOT_VALUE_CER, parse_slots
from sjepa.evaluate.superb.records import Fold
from sjepa.evaluate.superb.sequences import LITE_WIDTH, WIDTH, SequenceTask
from sjepa.evaluate.superb.specaugment import SpecAugment
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import SlotCharacters, mark_slots
from sjepa.evaluate.superb.user_corpus import column_value, label_items, read_items, split_corpus


def build(entry: Entry, request: Request) -> SequenceTask:
    (column,) = request.columns or ("tags",)
    labelled = label_items(
        request.data,
        read_items(request.data),
        lambda item: make_tagged_sentence(request.data, item, column),
        f"text and a tag for each word in the column {column}",
        "; choose a column of tags with --label COLUMN",
    )
    fold = split_corpus(request.data, labelled)
    slots = find_slot_names(fold)
    symbols = SlotCharacters(slots, collect_letters(remove_marks(str(u.label), slots) for u in fold.train))
    width = LITE_WIDTH if request.lite else WIDTH
    augment = SpecAugment()
    renamed = entry.rename_for_corpus(request.data, (column,))
    return renamed.task(SequenceTask, request, [fold], symbols=symbols, recurrent=width, augment=augment)


def make_tagged_sentence(data: Path, item: Item, column: str) -> str | None:
    """Return an item's words with marks around tagged words, or None without text or tags."""
    tags = column_value(item, column)
    tags = tags.split() if isinstance(tags, str) else tags
    words = item.text.split()
    if not words or not tags:
        return None
    if not isinstance(tags, list) or len(tags) != len(words):
        count = len(tags) if isinstance(tags, list) else "an invalid list of"
        raise UserError(f"{data}: {item.id} has {len(words)} words and {count} tags in {column}: each word needs one")
    return mark_slots(words, [str(tag).replace(" ", "_") for tag in tags])


def find_slot_names(fold: Fold) -> tuple[str, ...]:
    names = sorted({name for u in fold.utterances for name in parse_slots(str(u.label))})
    if not names:
        raise UserError(f"{fold.name}: every tag is O, so there is nothing to recognise")
    return tuple(names)


def remove_marks(sentence: str, slots: Sequence[str]) -> str:
    marks = {mark + slot for slot in slots for mark in ("B-", "E-")}
    return " ".join(piece for piece in sentence.split() if piece not in marks)


ENTRY = Entry(
    name="tag",
    title="tagged words of your own data",
    section=SectionKind.OTHER,
    recipe=Recipe(steps=200_000, lr=1e-4, batch=32, accumulate=1, evaluate_every=2000),
    lite_steps=2000,
    metrics=(SLOT_TYPE_F1, SLOT_VALUE_CER),
    build=build,
    reads_user_corpora=True,
    label_columns=LabelColumns.TAGS,
)
