"""SUPERB's protocol: train a head on frozen features, select on dev, report on test."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from sjepa.evaluate.superb.batches import testing_batches
from sjepa.evaluate.superb.features import Batch, padded
from sjepa.evaluate.superb.heads import WeightedSum
from sjepa.evaluate.superb.records import Fold, Label, Utterance
from sjepa.evaluate.superb.search import Search
from sjepa.evaluate.superb.state import TrainingState
from sjepa.files import write_whole
from sjepa.progress import Bar, bar
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


class Evaluation(Search):
    """Heads trained at several learning rates, or at the protocol's."""

    searched = "learning_rate"

    def candidates(self, lr: float | None, sweep: bool) -> Sequence[float]:
        return GRID if sweep else [self.task.recipe.lr if lr is None else lr]

    def protocol(self) -> dict[str, Any]:
        head = self.task.head(self.upstream.dimension)
        return asdict(self.task.recipe) | {"head_parameters": sum(p.numel() for p in head.parameters())}

    def tidy(self, chosen: float) -> None:
        """Keep the heads that were tested, for another language model to decode; nothing needs the rest."""
        kept = set()
        for index in range(len(self.task.folds)):
            _, _, state = self.open(index, chosen)
            state.finish()
            kept.add(state.file)
        for file in set((self.out / "training").iterdir()) - kept:
            file.unlink()

    def open(self, index: int, rate: float) -> tuple[Downstream, torch.optim.Optimizer, TrainingState]:
        """What is trained for a fold at a rate: new, or as it was when it stopped."""
        torch.manual_seed(seed_from(self.seed, index))
        downstream = Downstream(self.upstream.states, self.task.head(self.upstream.dimension)).to(self.upstream.device)
        optimizer = self.task.optimizer(downstream.parameters(), rate)
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
                    scores = task.score_part(self.predictions(downstream, fold.dev)[0], fold.dev)
                    state.record(scores, task.selection.name, task.selection.lower, loss)
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
            if self.task.augmentation is not None:
                x = self.task.augmentation(x, frames, generator)
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
        indices = self.task.batches(fold.train, self.samples(fold.train), seed)
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
                    decoded[name][index] = self.task.complete(decoder(row[:count]))
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
        suffix = f"-fold{index + 1}" if len(self.task.folds) > 1 else ""
        write_whole(self.out / f"predictions{suffix}.txt", self.as_text(fold.test, predictions))
        for name, said in decoded.items():
            write_whole(self.out / f"predictions-{name}{suffix}.txt", self.as_text(fold.test, said))
        weights = downstream.featurizer.weights.detach().softmax(0).tolist()
        return {
            "fold": fold.name,
            "metrics": self.task.score_part(predictions, fold.test),
            "chance": self.task.chance(fold),
            "decoded": {name: self.task.score_part(said, fold.test) for name, said in decoded.items()},
            "layer_weights": [round(weight, 4) for weight in weights],
            "best_step": state.best_step,
            "dev_curve": state.curve,
        }

    def as_text(self, utterances: Sequence[Utterance], predictions: Sequence[Any]) -> str:
        """Name, prediction and reference of each utterance, divided by tabs."""
        rows = zip(utterances, predictions, strict=True)
        return "".join(f"{u.name}\t{self.task.as_text(p)}\t{self.task.as_text(u.label)}\n" for u, p in rows)


def in_words(scores: dict[str, float], chance: dict[str, float] | None = None) -> str:
    levels = {name: f" (chance {value:.2f})" for name, value in (chance or {}).items()}
    return ", ".join(f"{name} {value:.2f}{levels.get(name, '')}" for name, value in scores.items())
