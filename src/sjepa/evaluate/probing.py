"""The paper's probing protocol on a corpus: features once, then speaker, gender, chapter and phones from any layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sjepa.errors import UserError
from sjepa.evaluate.labelled import Labelled
from sjepa.evaluate.probes import (
    Probe,
    Scores,
    chance,
    enough_utterances,
    linear_probe,
    mlp_probe,
    phone_probe,
    utterance_probe,
)
from sjepa.evaluate.prosody import (
    label_frames,
    log_energy,
    pitch,
    regression_probe,
    stress_of,
    tone_of,
    usable_groups,
)
from sjepa.evaluate.superb.batches import testing_batches
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.upstream import Upstream, frozen
from sjepa.progress import bar, say, track

UTTERANCE_SPLITS, PHONE_SPLITS = 10, 3
BATCH = 16
# Classifier, and whether speakers are held out.
PHONE_PROBES: dict[str, tuple[Probe, bool]] = {
    "phoneme linear, random frames": (linear_probe, False),
    "phoneme linear, held-out speakers": (linear_probe, True),
    "phoneme mlp, random frames": (mlp_probe, False),
    "phoneme mlp, held-out speakers": (mlp_probe, True),
}


@dataclass
class Extracted:
    """Of every utterance that is used the mean, and of some all frames, at the chosen states."""

    means: np.ndarray  # (utterances, states, dimension)
    framed: list[int]
    frames: list[np.ndarray]  # (states, frames, dimension)
    speed: float


def state_name(upstream: Upstream, state: int) -> str:
    """Layer l is the output of transformer layer l; before them comes the input of layer 0."""
    if upstream.states == 1:
        return "features"
    return "input" if state == 0 else f"layer {state - 1}"


def chosen_states(upstream: Upstream, layer: str) -> list[int]:
    if layer == "all":
        return list(range(upstream.states))
    if layer == "last":
        return [upstream.states - 1]
    if upstream.states == 1:
        raise UserError(f"--layer {layer}: {upstream.name} has one layer of features; leave --layer out")
    if not layer.isdigit() or not 0 <= int(layer) < upstream.states - 1:
        last = upstream.states - 2
        raise UserError(f"--layer {layer}: {upstream.name} has layers 0 to {last}; `last` and `all` are understood too")
    return [int(layer) + 1]


def extract(
    upstream: Upstream, corpus: Sequence[Labelled], states: list[int], frames: int | None, seed: int, means: bool = True
) -> Extracted:
    """Features of the corpus, or without `means` only of the utterances whose frames are wanted.

    `frames` is how many are wanted, 0 for all; None keeps means alone.
    """
    store = FeatureStore(upstream, cache_gb=0.0)
    headers = store.pool.map(lambda item: item.utterance.length(item.utterance.header().samples), corpus)
    samples = list(track(headers, "Reading headers", len(corpus)))
    framed = (
        set() if frames is None else set(enough_utterances([upstream.frame_count(n) for n in samples], frames, seed))
    )
    used = np.arange(len(corpus)) if means else np.array(sorted(framed))
    order = [used[batch] for batch in testing_batches(np.array(samples)[used], BATCH)]
    plan = (([corpus[i].utterance for i in batch], -1) for batch in order)
    averages: dict[int, np.ndarray] = {}
    kept: dict[int, np.ndarray] = {}
    with bar(f"Features: {upstream.name}", len(used)) as progress:
        for batch, (_, features) in zip(order, store.batches(plan), strict=True):
            for index, hidden in zip(batch.tolist(), features, strict=True):
                chosen = as_numpy(hidden[states])
                averages[index] = chosen.mean(1)
                if index in framed:
                    kept[index] = chosen
            progress.advance(len(batch), note=f"{store.speed:,.0f} s/s")
    ordered = sorted(kept)
    return Extracted(np.stack([averages[i] for i in used]), ordered, [kept[i] for i in ordered], store.speed)


def as_numpy(states: Tensor) -> np.ndarray:
    return states.float().cpu().numpy()


def probe_encoder(
    upstream: Upstream,
    corpus: Sequence[Labelled],
    *,
    layer: str = "last",
    frames: int = 125_000,
    seed: int = 0,
    prosody: bool = False,
) -> dict[str, Any]:
    """All probes at the chosen layers: `{state: {probe: scores}}` with chances, as `results.json` holds it."""
    states = chosen_states(upstream, layer)
    spoken = any(item.phones or item.segments for item in corpus)
    if not spoken:
        say("the corpus has no phones: the phoneme probes are left out")
    found = extract(upstream, corpus, states, frames if spoken or prosody else None, seed)
    lengths = [x.shape[1] for x in found.frames]
    properties = {
        "speaker": [item.speaker for item in corpus],
        "gender": [item.gender for item in corpus],
        "chapter": [item.chapter for item in corpus],
    }
    properties = {name: labels for name, labels in properties.items() if all(labels)}
    if not properties and not spoken and not prosody:
        raise UserError("there is nothing to probe: the corpus has neither phones nor a speaker for every utterance")
    chances = {name: chance(labels) for name, labels in properties.items()}
    if spoken:
        phones = np.concatenate(
            [corpus[i].frame_phones(n, upstream.frame_centres(n)) for i, n in zip(found.framed, lengths, strict=True)]
        )
        speakers = np.repeat([corpus[i].speaker for i in found.framed], lengths)
        chances |= {"phoneme": chance(phones)}
    results: dict[str, Any] = {}
    where = upstream.device
    sung = ProsodyProbes(upstream, corpus, found, phones if spoken else None, seed) if prosody else None
    with bar("Probes", len(states) * (len(properties) + (len(PHONE_PROBES) if spoken else 0))) as progress:
        for place, state in enumerate(states):
            scores: dict[str, Any] = {}
            means = torch.from_numpy(found.means[:, place]).to(where)
            for name, labels in properties.items():
                score = utterance_probe(means, labels, splits=UTTERANCE_SPLITS, seed=seed)
                scores[name] = as_result(score, chances[name])
                progress.advance(note=name)
            if spoken:
                features = torch.from_numpy(np.concatenate([x[place] for x in found.frames])).to(where)
                for name, (probe, by_speaker) in PHONE_PROBES.items():
                    score = phone_probe(
                        features, phones, speakers, probe=probe, by_speaker=by_speaker, splits=PHONE_SPLITS, seed=seed
                    )
                    scores[name] = as_result(score, chances["phoneme"])
                    progress.advance(note=name)
            if sung is not None:
                scores |= sung.scores(torch.from_numpy(np.concatenate([x[place] for x in found.frames])).to(where))
            results[state_name(upstream, state)] = scores
    data = {"utterances": len(corpus)}
    if spoken:
        counts = {"phone_utterances": len(lengths), "phone_frames": len(phones), "phones": len(np.unique(phones))}
        data |= counts
    return {
        "layers": results,
        "chance": {name: round(100 * value, 2) for name, value in chances.items()},
        "data": data,
        "audio_seconds_per_second": round(found.speed, 1),
    }


class ProsodyProbes:
    """Pitch and energy at the frames that were extracted, and stress and tone if the phones carry them."""

    def __init__(
        self, upstream: Upstream, corpus: Sequence[Labelled], found: Extracted, phones: np.ndarray | None, seed: int
    ):
        lengths = [x.shape[1] for x in found.frames]
        pairs = list(zip(found.framed, lengths, strict=True))
        audio = [(corpus[i].utterance.read(), upstream.frame_centres(n)) for i, n in track(pairs, "Pitch", len(pairs))]
        self.pitch = np.log(np.concatenate([pitch(*each) for each in audio]))
        self.energy = np.concatenate([log_energy(*each) for each in audio])
        self.speakers = np.repeat([corpus[i].speaker for i in found.framed], lengths)
        speakers = [corpus[i].speaker for i in found.framed]
        self.groups = np.repeat(usable_groups(speakers, found.framed), lengths)
        self.phones, self.seed = phones, seed

    def scores(self, x: Tensor) -> dict[str, Any]:
        """R² in percent of pitch (log F0 of voiced frames) and energy; accuracies of stress and tone."""
        found: dict[str, Any] = {}
        for name, values in (("pitch R²", self.pitch), ("energy R²", self.energy)):
            kept = np.flatnonzero(np.isfinite(values))
            if len(np.unique(self.groups[kept])) > 1:
                chosen = torch.from_numpy(kept).to(x.device)
                score = regression_probe(x[chosen], values[kept], self.groups[kept], PHONE_SPLITS, self.seed)
                found[name] = as_result(score, 0.0)
        if self.phones is None:
            return found
        for name, label in (("stress", stress_of), ("tone", tone_of)):
            kept, labels = label_frames(self.phones, label)
            if len(set(labels.tolist())) > 1 and len(set(self.speakers[kept].tolist())) > 1:
                chosen = torch.from_numpy(kept).to(x.device)
                score = phone_probe(x[chosen], labels, self.speakers[kept], splits=PHONE_SPLITS, seed=self.seed)
                found[f"{name} linear, held-out speakers"] = as_result(score, chance(labels))
        return found


def probe_results(
    upstream: Upstream,
    corpus: Sequence[Labelled],
    where: str,
    *,
    layer: str,
    frames: int,
    seed: int,
    prosody: bool = False,
) -> dict[str, Any]:
    """All probes of an encoder on a corpus of this name, as `results.json` holds them."""
    with frozen(upstream) as encoder:
        found = probe_encoder(upstream, corpus, layer=layer, frames=frames, seed=seed, prosody=prosody)
    about = {"task": "probe", "corpus": where, "encoder": encoder, "precision": upstream.precision}
    return about | {"seed": seed} | found


def as_result(scores: Scores, level: float) -> dict[str, Any]:
    """Percent, with chance."""
    return {
        "mean": round(100 * scores.mean, 2),
        "deviation": round(100 * scores.deviation, 2),
        "chance": round(100 * level, 2),
        "splits": [round(100 * score, 2) for score in scores.splits],
    }
