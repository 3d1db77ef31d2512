"""The paper's probing protocol: speaker, gender, chapter and phones from any layer, with features extracted once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sjepa.counts import format_count
from sjepa.errors import UserError
from sjepa.evaluate.labelled import LabelledUtterance
from sjepa.evaluate.probe_names import ProbeName, state_name
from sjepa.evaluate.probes import (
    Probe,
    Scores,
    chance_accuracy,
    choose_utterances,
    linear_probe,
    mlp_probe,
    phone_probe,
    require_scikit_learn,
    utterance_probe,
)
from sjepa.evaluate.prosody import (
    LEFT_OUT,
    choose_groups,
    compute_log_energy,
    estimate_pitch,
    label_frames,
    parse_stress,
    parse_tone,
    regression_probe,
)
from sjepa.evaluate.superb.batches import testing_batches
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.superb.records import measure_lengths
from sjepa.evaluate.upstream import Upstream, check_frozen
from sjepa.progress import Bar, bar, say, track

UTTERANCE_SPLITS, PHONE_SPLITS = 10, 3
BATCH = 16
# Probe, and whether test speakers are held out.
PHONE_PROBES: dict[ProbeName, tuple[Probe, bool]] = {
    ProbeName.PHONE_LINEAR_RANDOM: (linear_probe, False),
    ProbeName.PHONE_LINEAR_HELD_OUT: (linear_probe, True),
    ProbeName.PHONE_MLP_RANDOM: (mlp_probe, False),
    ProbeName.PHONE_MLP_HELD_OUT: (mlp_probe, True),
}


@dataclass
class ExtractedFeatures:
    """Features at the selected states: means of all utterances, and all frames of some."""

    means: np.ndarray  # (utterances, states, dimension)
    framed: list[int]
    frames: list[np.ndarray]  # (states, frames, dimension)
    speed: float

    @property
    def lengths(self) -> list[int]:
        """Frames of each utterance in `framed`."""
        return [each.shape[1] for each in self.frames]


def select_states(upstream: Upstream, layer: str) -> list[int]:
    """Return the states for `--layer`: a number, `last` or `all`."""
    if layer == "all":
        return list(range(upstream.states))
    if layer == "last":
        return [upstream.states - 1]
    if upstream.states == 1:
        raise UserError(f"--layer {layer}: {upstream.name} has one layer of features; omit --layer")
    if not layer.isdigit() or not 0 <= int(layer) < upstream.states - 1:
        last = upstream.states - 2
        raise UserError(f"--layer {layer}: {upstream.name} has layers 0 to {last}, `last` and `all`")
    return [int(layer) + 1]


def extract_features(
    upstream: Upstream,
    corpus: Sequence[LabelledUtterance],
    states: list[int],
    frames: int | None,
    seed: int,
    only_framed: bool = False,
    framed_from: Sequence[int] | None = None,
) -> ExtractedFeatures:
    """Extract features. With `only_framed`, only from utterances whose frames are kept.

    `frames` is the number of frames to keep, 0 for all, or None to keep only means. They come from the utterances
    `framed_from`, by default from all.
    """
    store = FeatureStore(upstream, cache_gb=0.0)
    samples = measure_lengths([item.utterance for item in corpus])
    framed: set[int] = set()
    if frames is not None:
        candidates = range(len(corpus)) if framed_from is None else framed_from
        counts = [upstream.frame_count(samples[i]) for i in candidates]
        framed = {candidates[i] for i in choose_utterances(counts, frames, seed)}
    used = np.array(sorted(framed)) if only_framed else np.arange(len(corpus))
    order = [used[batch] for batch in testing_batches(samples[used], BATCH)]
    plan = (([corpus[i].utterance for i in batch], -1) for batch in order)
    averages: dict[int, np.ndarray] = {}
    kept: dict[int, np.ndarray] = {}
    with bar(f"Features: {upstream.name}", len(used)) as progress:
        for batch, (_, features) in zip(order, store.batches(plan), strict=True):
            for index, hidden in zip(batch.tolist(), features, strict=True):
                chosen = hidden[states].float()
                averages[index] = chosen.mean(1).cpu().numpy()
                if index in framed:
                    kept[index] = chosen.cpu().numpy()
            progress.advance(len(batch), note=f"{store.speed:,.0f} s/s")
    ordered = sorted(kept)
    return ExtractedFeatures(np.stack([averages[i] for i in used]), ordered, [kept[i] for i in ordered], store.speed)


def probe_encoder(
    upstream: Upstream,
    corpus: Sequence[LabelledUtterance],
    *,
    layer: str = "last",
    frames: int = 125_000,
    seed: int = 0,
    prosody: bool = False,
) -> dict[str, Any]:
    """Run all probes at the selected layers. Return the scores and chance levels for `results.json`."""
    require_scikit_learn()
    states = select_states(upstream, layer)
    with_phones, properties = find_with_phones(corpus), choose_properties(corpus)
    if not properties and not with_phones and not prosody:
        raise UserError("nothing to probe: the corpus has neither phones nor a speaker for every utterance")
    wanted = frames if with_phones or prosody else None
    features = extract_features(upstream, corpus, states, wanted, seed, framed_from=with_phones or None)
    phone_probes = PhoneProbes(upstream, corpus, features, seed) if with_phones else None
    phones = phone_probes.labels if phone_probes else None
    prosody_probes = ProsodyProbes(upstream, corpus, features, phones, seed) if prosody else None
    chances: dict[str, float] = {name: chance_accuracy(labels) for name, labels in properties.items()}
    if phone_probes:
        chances["phoneme"] = phone_probes.chance
    results: dict[str, Any] = {}
    with bar("Probes", len(states) * (len(properties) + (len(phone_probes.probes) if phone_probes else 0))) as progress:
        for place, state in enumerate(states):
            means = torch.from_numpy(features.means[:, place]).to(upstream.device)
            scores: dict[str, Any] = {}
            for name, labels in properties.items():
                score = utterance_probe(means, labels, splits=UTTERANCE_SPLITS, seed=seed)
                scores[name] = to_percent(score, chances[name])
                progress.advance(note=name)
            if wanted is not None:
                x = torch.from_numpy(np.concatenate([each[place] for each in features.frames])).to(upstream.device)
                scores |= phone_probes.scores(x, progress) if phone_probes else {}
                scores |= prosody_probes.scores(x) if prosody_probes else {}
            results[state_name(state, upstream.states)] = scores
    return {
        "layers": results,
        "chance": {name: round(100 * value, 2) for name, value in chances.items()},
        "data": {"utterances": len(corpus)} | (phone_probes.counts if phone_probes else {}),
        "audio_seconds_per_second": round(features.speed, 1),
    }


def find_with_phones(corpus: Sequence[LabelledUtterance]) -> list[int]:
    """Return the utterances that have phones. Say how many have none, if some have them."""
    found = [index for index, item in enumerate(corpus) if item.has_phones]
    if 0 < len(found) < len(corpus):
        say(f"{len(corpus) - len(found):,} of {len(corpus):,} utterances have no phones: phone probes skip them")
    return found


def choose_properties(corpus: Sequence[LabelledUtterance]) -> dict[ProbeName, list[str]]:
    """Return the labels of each property that all utterances have and in which they differ."""
    labelled = {
        ProbeName.SPEAKER: [item.speaker for item in corpus],
        ProbeName.GENDER: [item.gender for item in corpus],
        ProbeName.CHAPTER: [item.chapter for item in corpus],
    }
    known = {name: labels for name, labels in labelled.items() if all(labels)}
    for name, labels in labelled.items():
        if any(labels) and name not in known:
            say(f"{labels.count(''):,} of {len(labels):,} utterances have no {name}: skipping its probe")
    for name, labels in known.items():
        if len(set(labels)) == 1:
            say(f"the corpus has a single {name}: skipping its probe")
    return {name: labels for name, labels in known.items() if len(set(labels)) > 1}


class PhoneProbes:
    """Probes of the phone at each frame, on random frames and with held-out speakers."""

    def __init__(self, upstream: Upstream, corpus: Sequence[LabelledUtterance], features: ExtractedFeatures, seed: int):
        lengths = features.lengths
        speakers = [corpus[i].speaker for i in features.framed]
        self.labels = np.concatenate(
            [
                corpus[i].frame_phones(n, upstream.frame_centres(n))
                for i, n in zip(features.framed, lengths, strict=True)
            ]
        )
        self.speakers = np.repeat(speakers, lengths)
        self.probes, self.chance, self.seed = choose_phone_probes(speakers), chance_accuracy(self.labels), seed
        distinct = len(np.unique(self.labels))
        self.counts = {"phone_utterances": len(lengths), "phone_frames": len(self.labels), "phones": distinct}

    def scores(self, x: Tensor, progress: Bar) -> dict[str, Any]:
        """Return the accuracies of all phone probes on the features of all frames."""
        scores: dict[str, Any] = {}
        for name, (probe, by_speaker) in self.probes.items():
            score = phone_probe(
                x,
                self.labels,
                self.speakers,
                probe=probe,
                by_speaker=by_speaker,
                splits=PHONE_SPLITS,
                seed=self.seed,
            )
            scores[name] = to_percent(score, self.chance)
            progress.advance(note=name)
        return scores


def choose_phone_probes(speakers: Sequence[str]) -> dict[ProbeName, tuple[Probe, bool]]:
    """Return the phone probes of utterances with these speakers. Held-out speakers need at least two."""
    if len(set(speakers) - {""}) > 1:
        report_left_out(sum(not speaker for speaker in speakers))
        return PHONE_PROBES
    say(
        "the utterances of the phone probes have fewer than two speakers: skipping the phone probes with held-out "
        "speakers (increase --frames if the corpus has more speakers)"
    )
    return {name: (probe, by_speaker) for name, (probe, by_speaker) in PHONE_PROBES.items() if not by_speaker}


def report_left_out(unknown: int) -> None:
    """Say how many utterances without a speaker the probes with held-out speakers leave out, if any."""
    if unknown:
        say(f"probes with held-out speakers leave out {format_count(unknown, 'utterance')} without a speaker")


class ProsodyProbes:
    """Probes of pitch and energy, and of stress and tone if the phone labels have them."""

    def __init__(
        self,
        upstream: Upstream,
        corpus: Sequence[LabelledUtterance],
        features: ExtractedFeatures,
        phones: np.ndarray | None,
        seed: int,
    ):
        lengths = features.lengths
        speakers = [corpus[i].speaker for i in features.framed]
        pairs = list(zip(features.framed, lengths, strict=True))
        audio = [(corpus[i].utterance.read(), upstream.frame_centres(n)) for i, n in track(pairs, "Pitch", len(pairs))]
        self.pitch = np.log(np.concatenate([estimate_pitch(*each) for each in audio]))
        self.energy = np.concatenate([compute_log_energy(*each) for each in audio])
        self.speakers = np.repeat(speakers, lengths)
        groups = choose_groups(speakers, features.framed)
        if phones is None:  # otherwise the phone probes report it
            report_left_out(int((groups == LEFT_OUT).sum()))
        self.groups = np.repeat(groups, lengths)
        self.phones, self.seed = phones, seed

    def scores(self, x: Tensor) -> dict[str, Any]:
        """Return R² in percent of pitch (log F0 of voiced frames) and energy, and accuracies of stress and tone."""
        scores: dict[str, Any] = {}
        for name, values in ((ProbeName.PITCH, self.pitch), (ProbeName.ENERGY, self.energy)):
            kept = np.flatnonzero(np.isfinite(values) & (self.groups != LEFT_OUT))
            if len(np.unique(self.groups[kept])) > 1:
                chosen = torch.from_numpy(kept).to(x.device)
                score = regression_probe(x[chosen], values[kept], self.groups[kept], PHONE_SPLITS, self.seed)
                scores[name] = to_percent(score, 0.0)
        if self.phones is None:
            return scores
        for name, label in ((ProbeName.STRESS, parse_stress), (ProbeName.TONE, parse_tone)):
            kept, labels = label_frames(self.phones, label)
            if len(set(labels.tolist())) > 1 and len(set(self.speakers[kept].tolist()) - {""}) > 1:
                chosen = torch.from_numpy(kept).to(x.device)
                score = phone_probe(x[chosen], labels, self.speakers[kept], splits=PHONE_SPLITS, seed=self.seed)
                scores[name] = to_percent(score, chance_accuracy(labels))
        return scores


def run_probes(
    upstream: Upstream,
    corpus: Sequence[LabelledUtterance],
    corpus_name: str,
    labels: str,
    *,
    layer: str,
    frames: int,
    seed: int,
    prosody: bool = False,
) -> dict[str, Any]:
    """Run all probes of an encoder on a corpus with this name and hash. Return the contents of `results.json`."""
    with check_frozen(upstream) as encoder:
        results = probe_encoder(upstream, corpus, layer=layer, frames=frames, seed=seed, prosody=prosody)
    about = {"task": "probe", "corpus": corpus_name, "encoder": encoder, "precision": upstream.precision}
    return about | {"labels": labels, "seed": seed, "requested_frames": frames} | results


def to_percent(scores: Scores, level: float) -> dict[str, Any]:
    """Convert scores and the chance level to percent."""
    return {
        "mean": round(100 * scores.mean, 2),
        "deviation": round(100 * scores.deviation, 2),
        "chance": round(100 * level, 2),
        "splits": [round(100 * score, 2) for score in scores.splits],
    }
