"""Classification of utterances in any labelled corpus: one column, or several that must all be correct."""

from sjepa.data.layouts import Item
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.entry import Entry, LabelColumns, Request
from sjepa.evaluate.superb.metrics import ACCURACY, BALANCED_ACCURACY
from sjepa.evaluate.superb.records import Fold, Label, sample_each_label
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.user_corpus import column_value, label_items, read_items, split_corpus
from sjepa.progress import say


def build(entry: Entry, request: Request) -> ClassTask:
    columns = request.columns or ("label",)
    items = read_items(request.data)

    def label(item: Item) -> Label | None:
        values = [column_value(item, column) for column in columns]
        if any(isinstance(value, dict | list) for value in values):
            raise UserError(f"{request.data}: {item.id} has {values} for {', '.join(columns)}: a class is one value")
        return None if any(value is None for value in values) else tuple(str(value) for value in values)

    wanted = f"a value in the column{'s' * (len(columns) > 1)} {' and '.join(columns)}"
    labelled = label_items(request.data, items, label, wanted, "; choose a column of classes with --label COLUMN")
    fold = split_corpus(request.data, labelled, by_speaker="speaker" not in columns)
    check_classes(fold, ", ".join(columns))
    return make_class_task(entry.rename_for_corpus(request.data, columns), request, [fold], choose=sample_each_label)


def check_classes(fold: Fold, columns: str) -> None:
    """Refuse a test part without any class of training. Warn of a test part with one class or with unknown classes."""
    known = {u.label for u in fold.train}
    unknown = sum(u.label not in known for u in fold.test)
    if unknown == len(fold.test):
        raise UserError(
            f"{fold.name}: no class of {columns} is in both the training and the test part, so nothing can be tested: "
            "give another --label, or a corpus without splits"
        )
    tested = {u.label for u in fold.test}
    if len(tested) == 1:
        only = " and ".join(tested.pop())
        say(f"Warning: {fold.name}: all test utterances have the class {only}, so the accuracy says little")
    if unknown:
        say(
            f"{fold.name}: training lacks the class of {unknown:,} of {len(fold.test):,} test utterances, "
            "which count as errors"
        )


ENTRY = Entry(
    name="classify",
    title="classes of your own data",
    section=SectionKind.OTHER,
    recipe=Recipe(steps=30_000, lr=1e-4, batch=32, accumulate=1, evaluate_every=1000),
    lite_steps=1000,
    metrics=(ACCURACY, BALANCED_ACCURACY),
    build=build,
    reads_user_corpora=True,
    label_columns=LabelColumns.CLASSES,
)
