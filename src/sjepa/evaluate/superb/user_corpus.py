"""A user's labelled corpus in any layout that `sjepa index` reads: labels, splits, and limited training data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sjepa.audio.io import SAMPLE_RATE
from sjepa.counts import format_count
from sjepa.data.index import open_index, read_labels
from sjepa.data.index_folder import IndexFolder
from sjepa.data.layouts import SCANNED, Item, detect_layout, find_items
from sjepa.data.layouts.manifest import LABELS_FILE
from sjepa.data.splits import PREFIXES, find_split_part
from sjepa.data.storage import is_url
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.records import SHARES, Fold, Label, Utterance, cut_places, measure_lengths, split_speakers
from sjepa.progress import say

if TYPE_CHECKING:  # it needs torch, and labels are read without
    from sjepa.evaluate.superb.task import Task

AnyTask = TypeVar("AnyTask", bound="Task")
DEV_SHARE = 0.1  # of the training speakers, if the corpus has no dev part
# What `is_user_corpus` accepts besides labels.jsonl, for messages.
USER_LAYOUTS = (
    "an index, a list (.jsonl, .csv, .tsv or .parquet), or a folder of Kaldi (wav.scp), lhotse, Hugging Face datasets, "
    "or audio with manifest.jsonl or metadata.csv"
)
ITEM_COLUMNS = {"speaker": "speaker", "sex": "sex", "gender": "sex", "chapter": "chapter", "text": "text"}


def corpus_label(data: Path) -> str:
    """Return the name of a corpus in results."""
    return data.resolve().name.partition(".")[0] or "corpus"


def is_user_corpus(data: Path, *known: str) -> bool:
    """Return whether a path is a user's corpus: it lists its audio and has none of the `known` folders."""
    if any((data / folder).is_dir() or data.name == folder for folder in known):
        return False
    if data.is_file() or IndexFolder(data).exists or (data / LABELS_FILE).is_file():
        return True
    return detect_layout(str(data)) not in SCANNED


def read_items(data: Path) -> list[Item]:
    """Read all utterances of a corpus or an index. Report how many are unusable, and the first."""
    if IndexFolder(data).exists:
        return read_index_items(data)
    listed = data / LABELS_FILE if (data / LABELS_FILE).is_file() else data
    found = list(find_items([str(listed)], "auto"))
    refused = [line for line in found if isinstance(line, str)]
    items = [item for item in found if not isinstance(item, str)]
    remote = [item for item in items if is_url(item.place.path)]
    if remote:
        raise UserError(f"{data}: {remote[0].id} is a URL; evaluation needs files")
    if refused:
        say(f"{data}: {len(refused):,} left out, first {refused[0]}")
    if not items:
        raise UserError(f"{data} has no utterances" + (f": {refused[0]}" if refused else ""))
    return items


def read_index_items(data: Path) -> list[Item]:
    """Read the utterances of an index, or of FLAC shards."""
    if IndexFolder(data).facts().get("shards") == "int16":
        raise UserError(f"{data} has shards of uncompressed samples: give the index that they were made from")
    corpus, labels = open_index(str(data)), read_labels(str(data))
    rows = labels.to_pylist()
    columns = ("id", "speaker", "sex", "chapter", "text", "split", "labels")
    items = []
    for number, row in enumerate(rows):
        texts: dict[str, Any] = {column: row.get(column) or "" for column in columns}
        offset, duration = int(corpus.start[number]) / SAMPLE_RATE, int(corpus.length[number]) / SAMPLE_RATE
        items.append(Item(corpus.place(number), offset=offset, duration=duration, **texts))
    return items


def make_utterance(item: Item, label: Label) -> Utterance:
    """Convert an item to an utterance."""
    start = round(item.offset * SAMPLE_RATE)
    samples = 0 if item.duration is None else round(item.duration * SAMPLE_RATE)
    inside = (item.place.offset, item.place.size)
    return Utterance(item.id, Path(item.place.path), label, item.speaker, start=start, samples=samples, inside=inside)


def column_value(item: Item, column: str) -> Any:
    """Return the value of a column: a standard field or an additional label of an item, or None."""
    if column in ITEM_COLUMNS:
        return getattr(item, ITEM_COLUMNS[column]) or None
    return json.loads(item.labels).get(column) if item.labels else None


def list_columns(items: Sequence[Item]) -> list[str]:
    """Return all columns that have a value in any utterance."""
    further = {name for item in items if item.labels for name in json.loads(item.labels)}
    return sorted(further | {name for name in ITEM_COLUMNS if any(getattr(item, ITEM_COLUMNS[name]) for item in items)})


def label_items(
    data: Path, items: Sequence[Item], label: Callable[[Item], Label | None], what: str, hint: str = ""
) -> list[tuple[Item, Label]]:
    """Pair items with their labels. Report how many have none. `hint` ends the error if no item has a label."""
    found = [(item, wanted) for item in items if (wanted := label(item))]
    if not found:
        known = ", ".join(list_columns(items))
        columns = f"its columns are {known}" if known else "it has no columns of labels, only audio"
        raise UserError(f"{data}: no utterance has {what}; {columns}{hint}")
    if len(found) < len(items):
        without = next(item.id for item in items if not label(item))
        say(f"{data}: {len(items) - len(found):,} of {len(items):,} utterances lack {what}, first {without}")
    return found


def split_corpus(data: Path, labelled: Sequence[tuple[Item, Label]], *, by_speaker: bool = True) -> Fold:
    """Split a corpus by its own splits, or into 70, 10 and 20% of its speakers.

    Without a dev part, a tenth of the training speakers becomes dev. If `by_speaker` is False, random utterances are
    drawn instead of speakers, for tasks that recognise the speaker. The same happens if no speakers are known.
    """
    utterances = [make_utterance(item, label) for item, label in labelled]
    parts: dict[str, list[Utterance]] = {name: [] for name in PREFIXES}
    others: dict[str, int] = {}
    for utterance, (item, _) in zip(utterances, labelled, strict=True):
        part = find_split_part(item.split)
        if part:
            parts[part].append(utterance)
        elif item.split:
            others[item.split] = others.get(item.split, 0) + 1
    name = corpus_label(data)
    if not parts["test"] and not parts["dev"] and not others:
        if by_speaker and not any(u.speaker for u in utterances):
            say(f"{data} has no speakers and no splits: split by utterance, so test speakers may be in training too")
            by_speaker = False
        return Fold(
            f"{name} split by {'speaker' if by_speaker else 'utterance'}",
            *split_by_shares(data, utterances, by_speaker),
        )
    if others and any(parts.values()):
        say(f"{data}: left out splits with names other than train, dev and test: {', '.join(sorted(others))}")
    missing = [part for part in ("train", "test") if not parts[part]]
    if missing:
        given = sorted({item.split for item, _ in labelled if item.split})
        raise UserError(
            f"{data} has the splits {', '.join(given)}, and none for {' and '.join(missing)}: name them train, dev "
            "and test, or remove all names to split by speaker"
        )
    without = [item.id for item, _ in labelled if not item.split]
    if without:
        count = f"{len(without):,} of {len(labelled):,}"
        say(f"{data}: {count} utterances have no split and are left out, first {without[0]}")
    if not parts["dev"]:
        speakers = {u.speaker for u in parts["train"]}
        by_speaker = by_speaker and "" not in speakers and len(speakers) > 1
        parts["train"], parts["dev"] = draw_parts(parts["train"], (1 - DEV_SHARE, DEV_SHARE), str(data), by_speaker)
    return Fold(name, **parts)


def split_by_shares(data: Path, utterances: Sequence[Utterance], by_speaker: bool) -> list[list[Utterance]]:
    speakers = {u.speaker for u in utterances if u.speaker}
    if by_speaker and len(speakers) < len(SHARES):
        raise UserError(
            f"{data} has {format_count(len(speakers), 'speaker')} and no splits: a split by speaker needs at least "
            f"{len(SHARES)}; give a split column or folders train, dev and test"
        )
    return draw_parts(utterances, SHARES, str(data), by_speaker)


def draw_parts(
    utterances: Sequence[Utterance], sizes: Sequence[float], what: str, by_speaker: bool
) -> list[list[Utterance]]:
    """Split into parts of relative `sizes`, by speaker or by utterance, with a fixed seed. No part is empty."""
    if by_speaker:
        return split_speakers(utterances, sizes, seed=0, what=what)
    if len(utterances) < len(sizes):
        raise UserError(f"{what} has {len(utterances)} utterances; a split needs at least {len(sizes)}")
    order = np.random.default_rng(0).permutation(len(utterances))
    return [[utterances[i] for i in sorted(part)] for part in np.split(order, cut_places(sizes, len(order)))]


def limit_training(task: AnyTask, hours: float, seed: int) -> AnyTask:
    """Limit the training part of a task to a random sample of `hours`. Dev and test do not change.

    Utterances are drawn until the amount is reached, so it is exceeded by less than one utterance.
    """
    amount = f"{hours:g}h" if hours >= 1 else f"{60 * hours:g}min"
    folds = [limit_fold(fold, hours, seed, amount) for fold in task.folds]
    return replace(task, name=f"{task.name}-{amount}", folds=folds, section=SectionKind.OTHER, submission=None)


def limit_fold(fold: Fold, hours: float, seed: int, amount: str) -> Fold:
    lengths = measure_lengths(fold.train)
    order = np.random.default_rng(seed).permutation(len(lengths))
    reached = np.cumsum(lengths[order]) / SAMPLE_RATE / 3600
    if reached[-1] < hours:
        raise UserError(f"{fold.name} has {reached[-1]:.2f} hours of training speech, less than {amount}")
    kept = sorted(order[: int(np.searchsorted(reached, hours)) + 1].tolist())
    return replace(fold, name=f"{fold.name}, {amount} of training", train=[fold.train[i] for i in kept])
