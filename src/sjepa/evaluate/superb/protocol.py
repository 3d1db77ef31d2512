"""SUPERB's protocol: train a head on frozen features, select on dev, report on test."""

import hashlib
import json
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sjepa import __version__
from sjepa.audio.io import SAMPLE_RATE, read_header
from sjepa.errors import UserError
from sjepa.evaluate.results import write_results
from sjepa.evaluate.superb.decode import BeamDecoder
from sjepa.evaluate.superb.features import Batch, FeatureStore, padded, testing_batches, training_batches
from sjepa.evaluate.superb.heads import WeightedSum
from sjepa.evaluate.superb.records import Fold, Label, Utterance
from sjepa.evaluate.superb.state import TrainingState, refuse_another
from sjepa.evaluate.superb.tasks import LOWER_IS_BETTER, SequenceTask, Task
from sjepa.evaluate.upstream import Upstream, about, check_unchanged
from sjepa.files import write_whole
from sjepa.progress import Bar, bar, say, track
from sjepa.seeds import seed_from
from sjepa.stopping import stop_requests

CLIP = 1.0
GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # learning rates that the public board tried
TEST_BATCH = 16
SAVE_EVERY = 500  # steps between saves, besides those at every look at dev


class Downstream(nn.Module):
    """What is trained: the weights of the layers and the head."""

    def __init__(self, states: int, head: nn.Module):
        super().__init__()
        self.featurizer = WeightedSum(states)
        self.head = head


@dataclass
class Evaluation:
    """One encoder on one task, in one folder."""

    task: Task
    upstream: Upstream
    out: Path
    seed: int = 0
    decoders: dict[str, BeamDecoder] = field(default_factory=dict)
    """Further ways to decode the test part, by name."""
    cache_gb: float | None = None

    def __post_init__(self) -> None:
        self.store = FeatureStore(self.upstream, self.cache_gb)
        self.lengths: dict[str, int] = {}

    def run(self, learning_rates: Sequence[float]) -> dict[str, Any]:
        """Train every fold at every rate, keep the rate that is best on dev, test it; returns `results.json`."""
        task = self.task
        self.out.mkdir(parents=True, exist_ok=True)
        self.measure()
        self.identity = self.describe()
        past = self.past(learning_rates)
        if past is not None and not self.decoders:
            say(f"{self.out} holds the results of this evaluation: nothing is left to do")
            return past
        if past is None:
            dev = {rate: self.dev_score(rate) for rate in learning_rates}
        else:
            dev = {rate: past["dev"]["by_learning_rate"][f"{rate:g}"] for rate in learning_rates}
        chosen = min(dev, key=lambda rate: dev[rate] if task.selection in LOWER_IS_BETTER else -dev[rate])
        folds = [self.test(fold, index, chosen) for index, fold in enumerate(task.folds)]
        check_unchanged(self.upstream, self.identity["encoder"])
        results = self.identity | {
            "metrics": average([fold["metrics"] for fold in folds]),
            "chance": average([fold["chance"] for fold in folds]),
            "decoded": {name: average([fold["decoded"][name] for fold in folds]) for name in self.decoders},
            "decoders": {name: asdict(decoder.settings) for name, decoder in self.decoders.items()},
            "learning_rate": chosen,
            "dev": {"metric": task.selection, "by_learning_rate": {f"{rate:g}": score for rate, score in dev.items()}},
            "folds": folds,
            "audio_seconds_per_second": round(self.store.speed, 1),
            "versions": {"sjepa": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
        write_results(self.out, results)
        self.tidy(chosen)
        return results

    def past(self, learning_rates: Sequence[float]) -> dict[str, Any] | None:
        """Results of this evaluation at these rates that stand in the folder; those of another one are refused."""
        file = self.out / "results.json"
        if not file.is_file():
            return None
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{file} is not JSON ({error}): choose another --out") from error
        refuse_another(self.out, results, self.identity)
        tried = results["dev"]["by_learning_rate"].keys() == {f"{rate:g}" for rate in learning_rates}
        return results if tried and results["learning_rate"] in learning_rates else None

    def tidy(self, chosen: float) -> None:
        """Keep the heads that were tested, for another language model to decode; nothing needs the rest."""
        kept = set()
        for index in range(len(self.task.folds)):
            _, _, state = self.open(index, chosen)
            state.finish()
            kept.add(state.file)
        for file in set((self.out / "training").iterdir()) - kept:
            file.unlink()

    def describe(self) -> dict[str, Any]:
        """What makes two evaluations the same one."""
        task = self.task
        parts = [{"train": fold.train, "dev": fold.dev, "test": fold.test} for fold in task.folds]
        data = [
            {"fold": fold.name}
            | {f"{name}_utterances": len(part) for name, part in named.items()}
            | {f"{name}_hours": round(self.hours(part), 3) for name, part in named.items()}
            for fold, named in zip(task.folds, parts, strict=True)
        ]
        head = task.head(self.upstream.dimension)
        return {
            "task": task.name,
            "protocol": asdict(task.recipe) | {"head_parameters": sum(p.numel() for p in head.parameters())},
            "data": data,
            "labels": labels_hash(task),
            "encoder": about(self.upstream),
            "seed": self.seed,
        }

    def measure(self) -> None:
        """Samples of every file, from the headers; a file that is no audio ends the evaluation here."""
        paths = {str(u.path) for fold in self.task.folds for part in (fold.train, fold.dev, fold.test) for u in part}
        ordered = sorted(paths)
        found = self.store.pool.map(read_header, ordered)
        infos = track(found, "Reading headers", len(ordered))
        self.lengths = {path: info.samples for path, info in zip(ordered, infos, strict=True)}
        say(f"{len(ordered):,} files, {sum(self.lengths.values()) / SAMPLE_RATE / 3600:.2f} hours")

    def hours(self, utterances: Sequence[Utterance]) -> float:
        return float(self.samples(utterances).sum()) / SAMPLE_RATE / 3600

    def samples(self, utterances: Sequence[Utterance]) -> np.ndarray:
        return np.array([min(self.lengths[str(u.path)], u.crop or 2**40) for u in utterances])

    def open(self, index: int, rate: float) -> tuple[Downstream, torch.optim.Optimizer, TrainingState]:
        """What is trained for a fold at a rate: new, or as it was when it stopped."""
        torch.manual_seed(seed_from(self.seed, index))
        downstream = Downstream(self.upstream.states, self.task.head(self.upstream.dimension)).to(self.upstream.device)
        optimizer = torch.optim.Adam(downstream.parameters(), lr=rate)
        file = self.out / "training" / f"fold{index + 1}-lr{rate:g}.safetensors"
        return downstream, optimizer, TrainingState.open(file, self.identity | {"lr": rate}, downstream, optimizer)

    def dev_score(self, rate: float) -> float:
        """The best on dev of all folds, trained at a rate."""
        states = [self.train(fold, index, rate)[1] for index, fold in enumerate(self.task.folds)]
        return float(np.mean([state.best_score for state in states]))

    def train(self, fold: Fold, index: int, rate: float) -> tuple[Downstream, TrainingState]:
        """Train one head, or continue where it stopped; the state holds the weights that were best on dev."""
        task, recipe = self.task, self.task.recipe
        seed = seed_from(self.seed, index)
        downstream, optimizer, state = self.open(index, rate)
        if state.step >= recipe.steps:
            return downstream, state
        part = f" {index + 1} of {len(task.folds)}" if len(task.folds) > 1 else ""
        with stop_requests() as asked, bar(f"{task.name}{part}, lr {rate:g}", recipe.steps, state.step) as progress:
            batches = self.store.batches(self.plan(fold, seed, state.step))
            while state.step < recipe.steps:
                loss = self.step(downstream, optimizer, batches, seed, state.step)
                state.step += 1
                if state.step % recipe.evaluate_every == 0 or state.step == recipe.steps:
                    scores = task.score(self.predictions(downstream, fold.dev)[0], [u.label for u in fold.dev])
                    state.record(scores, task.selection, task.selection in LOWER_IS_BETTER, loss)
                    progress.say(f"  step {state.step}: loss {loss:.3f}, dev " + in_words(scores))
                    state.save()
                elif state.step % SAVE_EVERY == 0 or asked:
                    state.save()
                if asked:
                    raise KeyboardInterrupt
                best = f"best dev {state.best_score:.2f}  " if state.curve else ""
                progress.advance(note=f"{best}loss {loss:.3f}")
        return downstream, state

    def step(
        self,
        downstream: Downstream,
        optimizer: torch.optim.Optimizer,
        batches: Iterator[Batch],
        seed: int,
        step: int,
    ) -> float:
        """One optimizer step over `accumulate` batches; a gradient that is not finite is thrown away."""
        recipe = self.task.recipe
        downstream.train()
        torch.manual_seed(seed_from(seed, step))  # dropout, the same after a stop
        generator = torch.Generator().manual_seed(seed_from(seed, step))
        losses = []
        for _ in range(recipe.accumulate):
            utterances, features = next(batches)
            states, frames = padded(features)
            x = downstream.featurizer(states)
            if self.task.augment is not None:
                x = self.task.augment(x, frames, generator)
            outputs = downstream.head(x, frames)
            loss = self.task.loss(outputs, frames, [u.label for u in utterances]) / recipe.accumulate
            loss.backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(downstream.parameters(), CLIP)
        *values, size = torch.stack([*losses, norm]).tolist()  # all at once: each look at the device waits for it
        if math.isfinite(size):
            optimizer.step()
        optimizer.zero_grad()
        return sum(values)

    def plan(self, fold: Fold, seed: int, step: int) -> Iterator[tuple[list[Utterance], int]]:
        """Training batches from a step on, each with a seed of its own."""
        weights = self.task.weights(fold.train)
        draw = None if weights is None else np.array(weights)
        indices = training_batches(self.samples(fold.train), self.task.recipe.batch, seed, draw)
        for number, batch in enumerate(indices):
            if number >= step * self.task.recipe.accumulate:
                yield [fold.train[i] for i in batch], seed_from(seed, number)

    @torch.inference_mode()
    def predictions(
        self, downstream: Downstream, utterances: Sequence[Utterance], decode: bool = False, progress: Bar | None = None
    ) -> tuple[list[Label], dict[str, list[Label]]]:
        """Labels of all utterances in their order; with `decode`, those of each further decoder too."""
        downstream.eval()
        found: dict[int, Label] = {}
        decoders = self.decoders if decode else {}
        decoded: dict[str, dict[int, Label]] = {name: {} for name in decoders}
        order = testing_batches(self.samples(utterances), TEST_BATCH)
        plan = [([utterances[i] for i in batch], -1) for batch in order]
        for batch, (_, features) in zip(order, self.store.batches(plan), strict=True):
            states, frames = padded(features)
            outputs = downstream.head(downstream.featurizer(states), frames)
            found.update(zip(batch.tolist(), self.task.predict(outputs, frames), strict=True))
            log_probabilities = outputs.log_softmax(-1).cpu() if decoders else ()
            for name, decoder in decoders.items():
                for row, count, index in zip(log_probabilities, frames.tolist(), batch.tolist(), strict=True):
                    decoded[name][index] = decoder(row[:count])
            if progress is not None:
                progress.advance(len(batch))
        ordered = range(len(utterances))
        return [found[i] for i in ordered], {name: [d[i] for i in ordered] for name, d in decoded.items()}

    def test(self, fold: Fold, index: int, rate: float) -> dict[str, Any]:
        """Score the best head on test, and write what it said beside what was wanted."""
        downstream, state = self.train(fold, index, rate)  # nothing is left to do where the head is still there
        downstream.load_state_dict(state.best)
        with bar(f"Testing {fold.name}", len(fold.test)) as progress:
            predictions, decoded = self.predictions(downstream, fold.test, bool(self.decoders), progress)
        wanted = [u.label for u in fold.test]
        suffix = f"-fold{index + 1}" if len(self.task.folds) > 1 else ""
        write_whole(self.out / f"predictions{suffix}.txt", as_text(fold.test, predictions))
        for name, said in decoded.items():
            write_whole(self.out / f"predictions-{name}{suffix}.txt", as_text(fold.test, said))
        weights = downstream.featurizer.weights.detach().softmax(0).tolist()
        return {
            "fold": fold.name,
            "metrics": self.task.score(predictions, wanted),
            "chance": self.task.chance(fold),
            "decoded": {name: self.task.score(said, wanted) for name, said in decoded.items()},
            "layer_weights": [round(weight, 4) for weight in weights],
            "best_step": state.best_step,
            "dev_curve": state.curve,
        }


def labels_hash(task: Task) -> str:
    """A hash of all that is asked and of all that can be answered."""
    parts = [part for fold in task.folds for part in (fold.train, fold.dev, fold.test)]
    asked = [[(u.name, u.label, u.crop) for u in part] for part in parts]
    answers = task.symbols.symbols if isinstance(task, SequenceTask) else task.classes
    return hashlib.sha256(json.dumps([asked, answers]).encode()).hexdigest()


def as_text(utterances: Sequence[Utterance], said: Sequence[Label]) -> str:
    """Name, prediction and reference of each utterance, divided by tabs."""

    def plain(label: Label) -> str:
        return label if isinstance(label, str) else ", ".join(label)

    rows = zip(utterances, said, strict=True)
    return "".join(f"{u.name}\t{plain(label)}\t{plain(u.label)}\n" for u, label in rows)


def average(scores: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}


def in_words(scores: dict[str, float], chance: dict[str, float] | None = None) -> str:
    levels = {name: f" (chance {value:.2f})" for name, value in (chance or {}).items()}
    return ", ".join(f"{name} {value:.2f}{levels.get(name, '')}" for name, value in scores.items())
