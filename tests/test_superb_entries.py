"""Entries of the tasks: one file each, everything about a task in one place, and tasks made from data."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from sjepa.evaluate.metric import Better, Metric, SectionKind
from sjepa.evaluate.superb import TASK_NAMES
from sjepa.evaluate.superb.classes import ClassTask, make_class_task
from sjepa.evaluate.superb.entry import Entry, Request
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import all_entries, find_entry
from sjepa.evaluate.table import build_sections
from sjepa.evaluate.tabular import to_markdown
from sjepa.evaluate.upstream import load_upstream


def test_every_file_of_the_folder_is_a_task_of_its_name() -> None:
    assert {"asr", "er", "sf", "pr", "ks", "ic", "sid", "qbe", "asv", "sd"} < set(TASK_NAMES)
    assert [entry.name for entry in all_entries()] == list(TASK_NAMES)
    outside = {entry.name for entry in all_entries() if entry.section is SectionKind.OTHER}
    assert outside >= {"ravdess", "coffee", "classify", "tag"}
    assert outside.isdisjoint({"asr", "er", "sf", "pr", "ks", "ic", "sid", "qbe", "asv", "sd"})


def test_an_entry_states_its_metrics_and_which_of_them_selects() -> None:
    for entry in all_entries():
        names = [metric.name for metric in entry.metrics]
        assert entry.selects in ("", *names)
        assert len(set(names)) == len(names)
    lower = {metric.name for entry in all_entries() for metric in entry.metrics if metric.better is Better.LOWER}
    assert lower >= {"wer", "cer", "per", "slot_value_cer", "eer", "der", "frame_der"}
    assert lower.isdisjoint({"accuracy", "balanced_accuracy", "slot_type_f1", "mtwv"})


def wrong(predictions: list, references: list) -> float:
    return 100.0 * float(np.mean([p != r for p, r in zip(predictions, references, strict=True)]))


def test_a_task_can_be_made_from_data(tmp_path: Path) -> None:
    """Its results say all that a table needs, so that no list knows its name."""
    generator = np.random.default_rng(0)
    made = []
    for index in range(12):
        label = ("loud", "quiet")[index % 2]
        samples = (0.3 if label == "loud" else 0.003) * generator.standard_normal(4000)
        soundfile.write(tmp_path / f"{index}.wav", samples, 16_000)
        made.append(Utterance(str(index), tmp_path / f"{index}.wav", (label,)))

    def build(entry: Entry, request: Request) -> ClassTask:
        return make_class_task(entry, request, [Fold("levels", made[:8], made[8:10], made[10:])])

    metrics = (Metric("error", Better.LOWER, score=wrong),)
    recipe = Recipe(steps=4, lr=1e-2, batch=4, accumulate=1, evaluate_every=2)
    entry = Entry("levels", "levels", SectionKind.OTHER, recipe, 2, metrics, build)
    task = entry.build(entry, entry.request(tmp_path))
    results = [
        entry.search(task, load_upstream(encoder), tmp_path / encoder).run([1e-2]) for encoder in ("mfcc", "logmel")
    ]
    assert entry.search is LearningRateSearch
    assert (results[0]["section"], results[0]["better"]) == ("other", {"error": "lower"})
    (section,) = build_sections(results)
    assert section.key.kind is SectionKind.OTHER
    assert "levels error ↓" in to_markdown([section])
    values = [row.value("levels error") for row in section.rows]
    best = section.best("levels error", 0)
    assert best == min(value for value in values if value is not None)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_recipe_looks_at_dev_within_its_steps(name: str) -> None:
    (entry,) = [entry for entry in all_entries() if entry.name == name]
    assert 0 < entry.recipe.evaluate_every <= entry.recipe.steps
    assert entry.lite_steps < entry.recipe.steps


@pytest.mark.parametrize(
    ("name", "steps", "lr", "batch", "accumulate", "evaluate_every"),
    [
        ("asr", 200_000, 1e-4, 16, 1, 2000),  # s3prl halves its batches of 32
        ("pr", 100_000, 1e-2, 16, 2, 1000),
        ("sf", 200_000, 1e-4, 32, 1, 2000),
        ("er", 30_000, 1e-4, 4, 8, 1000),
        ("ks", 200_000, 1e-4, 32, 1, 5000),
        ("ic", 200_000, 1e-4, 32, 1, 5000),
        ("sid", 200_000, 1e-4, 8, 4, 5000),
        ("asv", 200_000, 1e-4, 10, 5, 10_000),
        ("sd", 30_000, 1e-4, 8, 4, 500),
    ],
)
def test_recipes_and_looks_at_dev_are_those_of_s3prl(
    name: str, steps: int, lr: float, batch: int, accumulate: int, evaluate_every: int
) -> None:
    """The configurations of s3prl 0.4.10 and the problem classes of 0.4.18."""
    assert find_entry(name).recipe == Recipe(steps, lr, batch, accumulate, evaluate_every)
