"""Does effective rank find the best layer? Compare it with the error rate of a CTC head on each frozen layer."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from sjepa.device import Device
from sjepa.errors import UserError
from sjepa.evaluate.labelled import LabelledUtterance, corpus_name, read_labelled
from sjepa.evaluate.superb.batches import length_batches, testing_batches
from sjepa.evaluate.superb.features import FeatureStore, pad_states
from sjepa.evaluate.superb.librispeech import SILENCES, merge_phones
from sjepa.evaluate.superb.metrics import CER, PER, WER
from sjepa.evaluate.superb.records import Fold, Utterance, measure_lengths, split_speakers
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import Characters, Phones
from sjepa.evaluate.upstream import Upstream, load_upstream
from sjepa.progress import bar
from sjepa.runs.folder import RunFolder
from sjepa.seeds import seed_from
from sjepa.targets.layer import effective_rank

Labels = Literal["phones", "words"]
BATCH, CLIP = 16, 1.0
RATE = {"phones": 1e-2, "words": 1e-3}
LSTM = 256  # width of the head for words; phones have two linear layers
FRAMES = 2000  # sampled for the effective ranks
SHARES = (0.8, 0.2)  # of the speakers: training, held-out


def calibrate(
    run: Path,
    data: Path,
    *,
    subset: str = "dev-clean",
    labels: Labels = "phones",
    steps: int = 1000,
    seed: int = 0,
    device: Device = "auto",
    step: int | None = None,
) -> dict[str, Any]:
    """Train a head on every layer and correlate its error rate with the layer's effective rank.

    The encoder is the one at the end of phase 1, or that of the checkpoint at `step`.
    """
    folder = RunFolder(run).phase_encoder(1)
    if step is None and not folder.is_dir():
        raise UserError(f"{run} has no {folder.name}: the calibration needs a run that has finished phase 1")
    upstream = load_upstream(str(folder), device) if step is None else load_upstream(str(run), device, step=step)
    corpus = read_labelled(data, subset, phones=labels == "phones")
    train, held_out = hold_out_speakers(corpus, labels, seed)
    task = make_task(train, held_out, labels, steps)
    store = FeatureStore(upstream, cache_gb=2.0)
    heads = train_heads(store, task, train, steps, seed)
    scores, effective_ranks = score(store, task, heads, held_out, seed)
    spearman, p = rank_correlation(effective_ranks, [-value for value in scores], seed)
    return {
        "corpus": corpus_name(data, subset),
        "labels": labels,
        "metric": task.selection.name,
        "steps": steps,
        "checkpoint_step": step,
        "train_utterances": len(train),
        "held_out_utterances": len(held_out),
        "seed": seed,
        "scores": [round(value, 3) for value in scores],
        "effective_ranks": [round(value, 3) for value in effective_ranks],
        "best_layer": int(np.argmin(scores)),
        "highest_rank_layer": int(np.argmax(effective_ranks)),
        "spearman": round(spearman, 4),
        "p": round(p, 5),
    }


def hold_out_speakers(
    corpus: list[LabelledUtterance], labels: Labels, seed: int
) -> tuple[list[Utterance], list[Utterance]]:
    """Split labelled utterances by speaker into a training part and a held-out part."""
    utterances = [replace(item.utterance, label=label_text(item, labels)) for item in corpus]
    train, held_out = split_speakers([u for u in utterances if u.label], SHARES, seed, "the corpus")
    return train, held_out


def label_text(item: LabelledUtterance, labels: Labels) -> str:
    if labels == "words":
        return item.transcript()
    if item.segments:
        return " ".join(phone for _, _, phone in item.segments if phone not in SILENCES)
    return merge_phones(list(item.phones))


def make_task(train: list[Utterance], held_out: list[Utterance], labels: Labels, steps: int) -> SequenceTask:
    recipe = Recipe(steps, RATE[labels], BATCH, 1, steps, "calibration")
    fold = Fold("calibration", train, held_out, held_out)
    if labels == "words":
        return SequenceTask("calibration", recipe, [fold], (WER, CER), symbols=Characters(), recurrent=LSTM)
    known = sorted({phone for u in train + held_out for phone in str(u.label).split()})
    return SequenceTask("calibration", recipe, [fold], (PER,), symbols=Phones(tuple(known)))


def train_heads(
    store: FeatureStore, task: SequenceTask, train: list[Utterance], steps: int, seed: int
) -> nn.ModuleList:
    """Train one head per layer. All start from the same weights and see the same batches; no gradient is shared."""
    upstream: Upstream = store.upstream
    heads = nn.ModuleList()
    for _ in range(upstream.states - 1):
        torch.manual_seed(seed)
        heads.append(task.head(upstream.dimension).to(upstream.device))
    optimizer = torch.optim.Adam(heads.parameters(), lr=task.recipe.lr)
    indices = itertools.islice(length_batches(measure_lengths(train), BATCH, seed), steps)
    plan = (([train[i] for i in batch], -1) for batch in indices)
    with bar(f"Heads on {len(heads)} layers", steps) as progress:
        for number, (utterances, features) in enumerate(store.batches(plan)):
            torch.manual_seed(seed_from(seed, number))
            states, frames = pad_states(features)
            losses = []
            for layer, head in enumerate(heads):
                outputs = head(states[:, layer + 1].float(), frames)
                losses.append(task.loss(outputs, frames, [u.label for u in utterances]))
            torch.stack(losses).sum().backward()
            for head in heads:
                nn.utils.clip_grad_norm_(head.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            values = torch.stack(losses).tolist()
            progress.advance(note=f"loss {min(values):.2f} to {max(values):.2f}")
    return heads


@torch.inference_mode()
def score(
    store: FeatureStore, task: SequenceTask, heads: nn.ModuleList, held_out: list[Utterance], seed: int
) -> tuple[list[float], list[float]]:
    """Measure the error rate of every head, and the effective rank of every layer on a sample of the same frames."""
    predictions: list[list[Any]] = [[] for _ in heads]
    order: list[Utterance] = []
    sampled: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(seed)
    share = -(-FRAMES // len(held_out))
    heads.eval()
    batches = testing_batches(measure_lengths(held_out), BATCH)
    plan = [([held_out[i] for i in batch], -1) for batch in batches]
    with bar("Scoring", len(held_out)) as progress:
        for utterances, features in store.batches(plan):
            states, counts = pad_states(features)
            order += utterances
            for layer, head in enumerate(heads):
                predictions[layer] += task.predict(head(states[:, layer + 1].float(), counts), counts)
            for state in features:
                chosen = torch.randperm(state.shape[1], generator=generator)[:share]
                sampled.append(state[1:, chosen.to(state.device)].float().cpu())
            progress.advance(len(utterances))
    sample = torch.cat(sampled, dim=1)
    sample = sample[:, torch.randperm(sample.shape[1], generator=generator)[:FRAMES]]
    references = [u.label for u in order]
    scores = [task.score(each, references)[task.selection.name] for each in predictions]
    return scores, effective_rank(sample).tolist()


def rank_correlation(a: list[float], b: list[float], seed: int = 0) -> tuple[float, float]:
    """Spearman's rho, and its p value: the share of permutations that reach the same rho.

    Up to 8 layers all permutations are tried, beyond that 20,000 random ones.
    """
    x, y = (standard_ranks(values) for values in (a, b))
    rho = float((x * y).mean())
    if len(a) <= 8:
        orders = np.array(list(itertools.permutations(range(len(a)))))
    else:
        draw = np.random.default_rng(seed)
        orders = np.array([draw.permutation(len(a)) for _ in range(20_000)])
    return rho, float(((x * y[orders]).mean(1) >= rho - 1e-9).mean())


def standard_ranks(values: list[float]) -> np.ndarray:
    """Ranks with zero mean and unit variance. Ties get their mean rank."""
    array = np.array(values, float)
    ranks = np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])
    spread = ranks.std()
    return (ranks - ranks.mean()) / (spread if spread else 1.0)
