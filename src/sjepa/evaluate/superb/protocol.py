"""SUPERB's protocol: train a head on frozen features, select on dev, report on test.

Under torchrun, each rank computes the features and gradients of its part of every batch. All ranks take the same step.
"""

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sjepa import distributed
from sjepa.evaluate.metric import DecoderName
from sjepa.evaluate.superb.batches import testing_batches
from sjepa.evaluate.superb.features import pad_states
from sjepa.evaluate.superb.heads import WeightedSum
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.search import Search
from sjepa.evaluate.superb.state import TrainingState
from sjepa.files import atomic_file, write_whole
from sjepa.progress import Bar, bar
from sjepa.seeds import seed_from
from sjepa.stopping import stop_requests

GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # learning rates of the public leaderboard
HEAD_FILE = "fold{}-lr{}.safetensors"  # number of the fold, learning rate
TEST_BATCH = 16
SAVE_EVERY = 500  # steps between saves, in addition to those after every evaluation on dev


class RankBatch(NamedTuple):
    """A rank's part of a batch. It has no utterances if the batch has fewer than there are ranks."""

    utterances: Sequence[Utterance]
    states: Tensor  # (B, S, T, D)
    frames: Tensor  # (B,)
    share: float  # of the weight of the whole batch


class Downstream(nn.Module):
    """The trainable modules: layer weights and head."""

    def __init__(self, states: int, head: nn.Module):
        super().__init__()
        self.featurizer = WeightedSum(states)
        self.head = head


@dataclass
class HeadTraining:
    """One head in training: its learning rate, modules, optimizer and state."""

    rate: float
    downstream: Downstream
    optimizer: torch.optim.Optimizer
    state: TrainingState


class LearningRateSearch(Search):
    """Train heads at one or several learning rates."""

    candidate_key = "learning_rate"

    def candidates(self, lr: float | None, sweep: bool) -> Sequence[float]:
        return GRID if sweep else [self.task.recipe.lr if lr is None else lr]

    def training_steps(self, candidates: Sequence[float]) -> int:
        return self.task.recipe.steps * len(self.task.folds) * len(candidates)

    def protocol(self) -> dict[str, Any]:
        head = self.task.head(self.upstream.dimension)
        return asdict(self.task.recipe) | {"head_parameters": sum(p.numel() for p in head.parameters())}

    def clean_up(self, chosen: float) -> None:
        """Keep the tested heads, for decoding with another language model. Delete the others."""
        kept = set()
        for index in range(len(self.task.folds)):
            state = self.open(index, chosen).state
            state.finish()
            kept.add(state.file)
        for file in set(self.state_files()) - kept:
            file.unlink()

    def state_files(self) -> list[Path]:
        heads = re.compile(HEAD_FILE.format(r"\d+", r"[\d.]+(e[+-]\d+)?"))
        return [file for file in (self.out / "training").glob("*") if heads.fullmatch(file.name)]

    def open(self, index: int, rate: float) -> HeadTraining:
        """Open the training of a fold at a learning rate: new, or from its saved state."""
        torch.manual_seed(seed_from(self.seed, index))
        downstream = Downstream(self.upstream.states, self.task.head(self.upstream.dimension)).to(self.upstream.device)
        optimizer = self.task.optimizer(downstream.parameters(), rate)
        file = self.out / "training" / HEAD_FILE.format(index + 1, f"{rate:g}")
        state = TrainingState.open(file, self.identity | {"lr": rate}, downstream, optimizer)
        return HeadTraining(rate, downstream, optimizer, state)

    def dev_scores(self, candidates: Sequence[float]) -> dict[float, float]:
        """Train at each learning rate. Return the best dev scores, averaged over folds."""
        trained = [self.train(fold, index, candidates) for index, fold in enumerate(self.task.folds)]
        return {
            rate: float(np.mean([fold[place].state.best_score for fold in trained]))
            for place, rate in enumerate(candidates)
        }

    def train(self, fold: Fold, index: int, rates: Sequence[float]) -> list[HeadTraining]:
        """Train a head at each learning rate, or resume it. States contain the best weights on dev.

        All heads use the same batches, so features are computed once for all rates. A head with more steps waits for
        the others.
        """
        task, recipe = self.task, self.task.recipe
        seed = seed_from(self.seed, index)
        heads = distributed.run_on_all_ranks(lambda: [self.open(index, rate) for rate in rates])
        first = min(head.state.step for head in heads)
        if first >= recipe.steps:
            return heads
        part = f" {index + 1} of {len(task.folds)}" if len(task.folds) > 1 else ""
        title = f"lr {rates[0]:g}" if len(rates) == 1 else f"{len(rates)} learning rates"
        with stop_requests() as asked, bar(f"{task.name}{part}, {title}", recipe.steps, first) as progress:
            batches = self.rank_batches(fold, seed, first)
            for step in range(first, recipe.steps):
                taken = distributed.run_on_all_ranks(lambda: [next(batches) for _ in range(recipe.accumulate)])
                behind = [head for head in heads if head.state.step == step]
                losses = [self.step(head.downstream, head.optimizer, taken, seed, step) for head in behind]
                for head in behind:
                    head.state.step += 1
                evaluate = (step + 1) % recipe.evaluate_every == 0 or step + 1 == recipe.steps
                if evaluate:
                    asked.moment = "after this evaluation"
                    self.evaluate_dev(fold, behind, losses, progress)
                    asked.moment = "after this step"
                stop = bool(asked) if distributed.world_size() == 1 else distributed.broadcast_object(bool(asked))
                if evaluate or (step + 1) % SAVE_EVERY == 0 or stop:
                    distributed.run_on_main_rank(partial(save_all, behind))
                progress.advance(note=self.note(behind, losses))
                if stop:
                    raise KeyboardInterrupt
        return heads

    def evaluate_dev(self, fold: Fold, heads: Sequence[HeadTraining], losses: Sequence[float], progress: Bar) -> None:
        """Score heads on dev. Each stores its weights if they are its best."""
        task = self.task
        found = self.predictions([head.downstream for head in heads], fold.dev)
        for head, loss, predictions in zip(heads, losses, found, strict=True):
            scores = task.score_part(predictions, fold.dev)
            head.state.record(scores, task.selection.name, task.selection.lower, loss)
            rate = f" lr {head.rate:g}:" if len(heads) > 1 else ""
            progress.say(f"  step {head.state.step}:{rate} loss {loss:.3f}, dev " + format_scores(scores))

    def note(self, heads: Sequence[HeadTraining], losses: Sequence[float]) -> str:
        """Return the text after the progress bar: the best dev score and the lowest loss of all heads."""
        scores = [head.state.best_score for head in heads if head.state.curve]
        best = self.task.selection.best([score for score in scores if not math.isnan(score)])
        return ("" if best is None else f"best dev {best:.2f}  ") + f"loss {min(losses):.3f}"

    def step(
        self,
        downstream: Downstream,
        optimizer: torch.optim.Optimizer,
        batches: Sequence[RankBatch],
        seed: int,
        step: int,
    ) -> float:
        """Take one optimizer step over `accumulate` batches. Skip it if the gradient is not finite."""
        recipe = self.task.recipe
        downstream.train()
        torch.manual_seed(seed_from(seed, step))  # the same dropout after resuming
        generator = torch.Generator().manual_seed(seed_from(seed, step))
        losses = []
        for utterances, states, frames, share in batches:
            if not utterances:
                losses.append(torch.zeros((), device=self.upstream.device))
                continue
            x = downstream.featurizer(states)
            if self.task.augmentation is not None:
                x = self.task.augmentation(x, frames, generator)
            outputs = downstream.head(x, frames)
            loss = share * self.task.loss(outputs, frames, [u.label for u in utterances]) / recipe.accumulate
            loss.backward()
            losses.append(loss.detach())
        if distributed.world_size() > 1:
            for parameter in downstream.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                distributed.sum_over_ranks(parameter.grad)
        norm = nn.utils.clip_grad_norm_(downstream.parameters(), self.task.clip)
        total = distributed.sum_over_ranks(torch.stack(losses))
        *values, size = torch.cat([total, norm[None]]).tolist()  # one transfer, because each one synchronises
        if math.isfinite(size):
            optimizer.step()
        optimizer.zero_grad()
        return sum(values)

    def rank_batches(self, fold: Fold, seed: int, step: int) -> Iterator[RankBatch]:
        """Yield this rank's part of each training batch from a step on."""
        rank, ranks = distributed.rank(), distributed.world_size()
        weights: deque[float] = deque()

        def plan_part() -> Iterator[tuple[list[Utterance], int]]:
            for utterances, number in self.plan(fold, seed, step):
                mine = utterances[rank::ranks]
                whole, part = (self.task.weight([u.label for u in each]) for each in (utterances, mine))
                weights.append(part / whole)
                yield mine, number

        for mine, features in self.store.batches(plan_part()):
            states, frames = pad_states(features) if mine else (torch.empty(0), torch.empty(0))
            yield RankBatch(mine, states, frames, weights.popleft())

    def plan(self, fold: Fold, seed: int, step: int) -> Iterator[tuple[list[Utterance], int]]:
        """Yield training batches from a step on, each with its own seed."""
        indices = self.task.batches(fold.train, self.samples(fold.train), seed)
        for number, batch in enumerate(indices):
            if number >= step * self.task.recipe.accumulate:
                yield [fold.train[i] for i in batch], seed_from(seed, number)

    def outputs(
        self, downstreams: Sequence[Downstream], utterances: Sequence[Utterance]
    ) -> Iterator[tuple[np.ndarray, Tensor, list[Tensor]]]:
        """Yield indices, frame counts and outputs of each head, for batches of this rank's utterances."""
        for downstream in downstreams:
            downstream.eval()
        order = testing_batches(self.samples(utterances), TEST_BATCH)[distributed.rank() :: distributed.world_size()]
        plan = [([utterances[i] for i in batch], -1) for batch in order]
        for batch, (_, features) in zip(order, self.store.batches(plan), strict=True):
            states, frames = pad_states(features)
            yield batch, frames, [d.head(d.featurizer(states), frames) for d in downstreams]

    @torch.inference_mode()
    def predictions(self, downstreams: Sequence[Downstream], utterances: Sequence[Utterance]) -> list[list[Any]]:
        """Return the predictions of each head for all utterances, in order."""
        found: list[dict[int, Any]] = [{} for _ in downstreams]

        def predict_part() -> None:
            for batch, frames, outputs in self.outputs(downstreams, utterances):
                for predictions, output in zip(found, outputs, strict=True):
                    predictions.update(zip(batch.tolist(), self.task.predict(output, frames), strict=True))

        distributed.run_on_all_ranks(predict_part)
        for others in distributed.gather_objects(found):
            for predictions, other in zip(found, others, strict=True):
                predictions.update(other)
        return [[predictions[i] for i in range(len(utterances))] for predictions in found]

    @torch.inference_mode()
    def decode(
        self, downstream: Downstream, utterances: Sequence[Utterance], progress: Bar
    ) -> tuple[list[Any], dict[str, list[Any]]]:
        """Return a head's predictions for all utterances, and those of each additional decoder."""
        found: dict[int, Any] = {}
        decoded: dict[str, dict[int, Any]] = {name: {} for name in self.decoders}

        def decode_part() -> None:
            for batch, frames, (output,) in self.outputs([downstream], utterances):
                found.update(zip(batch.tolist(), self.task.predict(output, frames), strict=True))
                log_probabilities = output.log_softmax(-1).cpu() if self.decoders else ()
                for name, decoder in self.decoders.items():
                    for row, count, index in zip(log_probabilities, frames.tolist(), batch.tolist(), strict=True):
                        decoded[name][index] = self.task.complete(decoder(row[:count]))
                progress.advance(len(batch) * distributed.world_size())

        distributed.run_on_all_ranks(decode_part)
        for others, others_decoded in distributed.gather_objects((found, decoded)):
            found |= others
            decoded = {name: texts | others_decoded[name] for name, texts in decoded.items()}
        ordered = range(len(utterances))
        return [found[i] for i in ordered], {name: [d[i] for i in ordered] for name, d in decoded.items()}

    def test(self, fold: Fold, index: int, candidate: float) -> dict[str, Any]:
        """Score the best head on test, and write predictions and references."""
        (head,) = self.train(fold, index, [candidate])  # returns at once if the head is already trained
        downstream, state = head.downstream, head.state
        downstream.load_state_dict(state.best)
        with bar(f"Testing {fold.name}", len(fold.test)) as progress:
            predictions, decoded = self.decode(downstream, fold.test, progress)
        suffix = f"-fold{index + 1}" if len(self.task.folds) > 1 else ""
        files: dict[str, str | bytes] = {f"predictions{suffix}.txt": self.task.listing(predictions, fold.test)}
        files |= self.task.submitted_files(predictions, fold.test, index)
        for name, texts in decoded.items():
            files[f"predictions-{name}{suffix}.txt"] = self.task.listing(texts, fold.test)
            if name == DecoderName.BOARD and self.task.submission is not None:
                files |= self.task.submission.decoded_files(fold.test, texts)
        distributed.run_on_main_rank(lambda: write_files(self.out, files))
        weights = downstream.featurizer.weights.detach().softmax(0).tolist()
        return {
            "fold": fold.name,
            "metrics": self.task.score_part(predictions, fold.test),
            "chance": self.task.chance(fold),
            "decoded": {name: self.task.score_part(texts, fold.test) for name, texts in decoded.items()},
            "layer_weights": [round(weight, 4) for weight in weights],
            "best_step": state.best_step,
            "dev_curve": state.curve,
        }


def save_all(heads: Sequence[HeadTraining]) -> None:
    for head in heads:
        head.state.save()


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below a folder, each atomically."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            write_whole(folder / name, content)
        else:
            with atomic_file(folder / name) as unfinished:
                unfinished.write_bytes(content)


def format_scores(scores: dict[str, float], chance: dict[str, float] | None = None) -> str:
    """Format scores as one line, with chance levels if given."""
    levels = {name: f" (chance {value:.2f})" for name, value in (chance or {}).items()}
    return ", ".join(f"{name} {value:.2f}{levels.get(name, '')}" for name, value in scores.items())
