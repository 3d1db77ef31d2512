"""Short evaluations on the SUPERB tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.task import Recipe, Task
from sjepa.evaluate.upstream import load_upstream


def shortened(task: Task, steps: int, batch: int = 8) -> Task:
    """The same task for a few steps, with one batch a step and a narrow recurrent head."""
    recipe = Recipe(steps, task.recipe.lr, batch, 1, max(1, steps // 2), "lite")
    if isinstance(task, SequenceTask) and task.recurrent:
        return replace(task, recipe=recipe, recurrent=64, augment=None)
    return replace(task, recipe=recipe)


def run(task: Task, out: Path, rate: float, encoder: str = "logmel", **options: Any) -> dict[str, Any]:
    return LearningRateSearch(task, load_upstream(encoder), out, **options).run([rate])


def noises(folder: Path, number: int) -> list[Utterance]:
    """Very short recordings of many lengths; their labels are random, so that a head never has done with them."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    made = []
    for index in range(number):
        samples = 0.1 * generator.standard_normal(generator.integers(800, 4800))
        soundfile.write(folder / f"{index}.wav", samples, 16_000)
        made.append(Utterance(str(index), folder / f"{index}.wav", (str(generator.integers(2)),)))
    return made
