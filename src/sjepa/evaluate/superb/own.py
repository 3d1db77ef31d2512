"""A labelled corpus of the user's own, in any layout that `sjepa index` reads: its labels, its splits, a part of it."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sjepa.audio.io import SAMPLE_RATE
from sjepa.data.index import open_index, read_facts, read_labels
from sjepa.data.layouts import Item, find_items, layout_of
from sjepa.data.storage import is_url
from sjepa.errors import UserError
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.superb.records import Fold, Label, Utterance, by_group
from sjepa.evaluate.superb.task import Task
from sjepa.progress import say, track

AnyTask = TypeVar("AnyTask", bound=Task)
LISTED = "labels.jsonl"
# How corpora call their parts; the beginning counts.
PARTS = {"train": ("train",), "dev": ("dev", "val", "cv"), "test": ("test", "eval")}
SHARES = (0.7, 0.1, 0.2)  # of the speakers, without given splits
DEV_SHARE = 0.1  # of the training speakers, if no dev part is given
PLAIN = {"speaker": "speaker", "sex": "sex", "gender": "sex", "chapter": "chapter", "text": "text"}


@dataclass(frozen=True)
class OwnData:
    """How a corpus of the user's own is read."""

    columns: tuple[str, ...] = ()
    """Columns with the labels of `classify` and `tag`."""


def corpus_label(data: Path) -> str:
    """A corpus as names of results call it."""
    return data.resolve().name.partition(".")[0] or "corpus"


def is_own(data: Path, *known: str) -> bool:
    """Whether a place is a corpus of the user's own: it lists its audio, and has none of the folders that are known."""
    if any((data / folder).is_dir() or data.name == folder for folder in known):
        return False
    if data.is_file() or (data / "index.json").is_file() or (data / LISTED).is_file():
        return True
    return layout_of(str(data)) in ("kaldi", "lhotse", "hugging_face", "audiofolder", "manifest")


def read_items(data: Path, layout: str = "auto") -> list[Item]:
    """All utterances of a corpus or of an index; what cannot be used is counted, and the first is named."""
    if (data / "index.json").is_file():
        return indexed_items(data)
    listed = data / LISTED if (data / LISTED).is_file() else data
    found = list(find_items([str(listed)], layout))
    refused = [line for line in found if isinstance(line, str)]
    items = [item for item in found if not isinstance(item, str)]
    remote = [item for item in items if is_url(item.place.path)]
    if remote:
        raise UserError(f"{data}: {remote[0].id} lies behind a URL; evaluation needs files")
    if refused:
        say(f"{data}: {len(refused):,} left out, first {refused[0]}")
    if not items:
        raise UserError(f"{data} has no utterances" + (f": {refused[0]}" if refused else ""))
    return items


def indexed_items(data: Path) -> list[Item]:
    """Utterances of an index, or of shards in FLAC."""
    if read_facts(str(data)).get("shards") == "int16":
        raise UserError(f"{data} holds shards of plain samples: give the index that they were made from")
    corpus, labels = open_index(str(data)), read_labels(str(data))
    rows = labels.to_pylist()
    columns = ("id", "speaker", "sex", "chapter", "text", "split", "labels")
    items = []
    for number, row in enumerate(rows):
        name, *texts = (row.get(column) or "" for column in columns)
        stretch = (int(corpus.start[number]) / SAMPLE_RATE, int(corpus.length[number]) / SAMPLE_RATE)
        items.append(Item(corpus.place(number), name, *stretch, (), *texts))
    return items


def utterance_of(item: Item, label: Label) -> Utterance:
    """An item as tasks read it."""
    start = round(item.offset * SAMPLE_RATE)
    samples = 0 if item.duration is None else round(item.duration * SAMPLE_RATE)
    inside = (item.place.offset, item.place.size)
    return Utterance(item.id, Path(item.place.path), label, item.speaker, start=start, samples=samples, inside=inside)


def column_value(item: Item, column: str) -> Any:
    """A column of an item: one of its own, or one of its further labels; None without it."""
    if column in PLAIN:
        return getattr(item, PLAIN[column]) or None
    return json.loads(item.labels).get(column) if item.labels else None


def columns_of(items: Sequence[Item]) -> list[str]:
    """The columns that some utterance has."""
    further = {name for item in items if item.labels for name in json.loads(item.labels)}
    return sorted(further | {name for name in PLAIN if any(getattr(item, PLAIN[name]) for item in items)})


def label_items(
    data: Path, items: Sequence[Item], label: Callable[[Item], Label | None], what: str
) -> list[tuple[Item, Label]]:
    """Items with their labels; those without one are counted."""
    found = [(item, wanted) for item in items if (wanted := label(item))]
    if not found:
        known = ", ".join(columns_of(items)) or "none"
        raise UserError(f"{data}: no utterance has {what}; its columns are {known}")
    if len(found) < len(items):
        without = next(item.id for item in items if not label(item))
        say(f"{data}: {len(items) - len(found):,} of {len(items):,} utterances have no {what}, first {without}")
    return found


def divide(data: Path, labelled: Sequence[tuple[Item, Label]], *, by_speaker: bool = True) -> Fold:
    """Parts of a corpus: as it gives them, or 70, 10 and 20% of its speakers.

    A corpus without a dev part gives a tenth of its training speakers to it. With `by_speaker` off, utterances are
    drawn at random where speakers would be: the speaker is then what is to be recognised.
    """
    utterances = [utterance_of(item, label) for item, label in labelled]
    parts: dict[str, list[Utterance]] = {name: [] for name in PARTS}
    others: dict[str, int] = {}
    for utterance, (item, _) in zip(utterances, labelled, strict=True):
        part = part_of(item.split)
        if part:
            parts[part].append(utterance)
        elif item.split:
            others[item.split] = others.get(item.split, 0) + 1
    name = corpus_label(data)
    if not parts["test"] and not parts["dev"] and not others:
        return Fold(
            f"{name} split by {'speaker' if by_speaker else 'utterance'}", *shares(data, utterances, by_speaker)
        )
    if others and any(parts.values()):
        say(f"{data}: left out, because they are called neither train, dev nor test: {', '.join(sorted(others))}")
    missing = [part for part in ("train", "test") if not parts[part]]
    if missing:
        given = sorted({item.split for item, _ in labelled})
        raise UserError(
            f"{data} has the splits {', '.join(given)}, and none for {' and '.join(missing)}: call them train, dev "
            "and test, or name none, to split by speaker"
        )
    if not parts["dev"]:
        speakers = by_speaker and len({u.speaker for u in parts["train"]}) > 1
        parts["train"], parts["dev"] = draw_parts(parts["train"], (1 - DEV_SHARE, DEV_SHARE), str(data), speakers)
    return Fold(name, **parts)


def part_of(split: str) -> str:
    return next((part for part, names in PARTS.items() if split.lower().startswith(names)), "")


def shares(data: Path, utterances: Sequence[Utterance], by_speaker: bool) -> list[list[Utterance]]:
    known = [u for u in utterances if u.speaker]
    if by_speaker and len({u.speaker for u in known}) < len(SHARES):
        raise UserError(
            f"{data} has {len({u.speaker for u in known})} speaker(s) and no splits: a split by speaker needs at least "
            f"{len(SHARES)}; give a split column or folders train, dev and test"
        )
    if by_speaker and len(known) < len(utterances):
        say(f"{data}: {len(utterances) - len(known):,} utterances without a speaker are left out")
    return draw_parts(known if by_speaker else utterances, SHARES, str(data), by_speaker)


def draw_parts(
    utterances: Sequence[Utterance], sizes: Sequence[float], what: str, by_speaker: bool
) -> list[list[Utterance]]:
    """Parts of these sizes, by speaker or by utterance; the draw is always the same."""
    if by_speaker:
        return by_group(utterances, sizes, seed=0, what=what)
    if len(utterances) < len(sizes):
        raise UserError(f"{what} has {len(utterances)} utterances; a split needs at least {len(sizes)}")
    order = np.random.default_rng(0).permutation(len(utterances))
    places = np.arange(1, len(sizes))
    cuts = np.clip(np.round(np.cumsum(sizes)[:-1] * len(order)).astype(int), places, len(order) - places[::-1])
    return [[utterances[i] for i in sorted(part)] for part in np.split(order, cuts)]


def limit_training(task: AnyTask, hours: float, seed: int) -> AnyTask:
    """The task with so many hours of its training part, drawn at random by the seed; dev and test stay whole.

    Utterances are drawn until the amount is reached, so at most one utterance is too much.
    """
    amount = f"{hours:g}h" if hours >= 1 else f"{60 * hours:g}min"
    folds = [limit_fold(fold, hours, seed, amount) for fold in task.folds]
    return replace(task, name=f"{task.name}-{amount}", folds=folds, section=SectionKind.OTHER)


def limit_fold(fold: Fold, hours: float, seed: int, amount: str) -> Fold:
    with ThreadPoolExecutor(8) as pool:
        headers = track(pool.map(Utterance.header, fold.train), "Reading headers", len(fold.train))
        lengths = [u.length(info.samples) for u, info in zip(fold.train, headers, strict=True)]
    order = np.random.default_rng(seed).permutation(len(lengths))
    reached = np.cumsum(np.array(lengths)[order]) / SAMPLE_RATE / 3600
    if reached[-1] < hours:
        raise UserError(f"{fold.name} has {reached[-1]:.2f} hours of training speech; {amount} is more than that")
    kept = sorted(order[: int(np.searchsorted(reached, hours)) + 1].tolist())
    return replace(fold, name=f"{fold.name}, {amount} of training", train=[fold.train[i] for i in kept])
