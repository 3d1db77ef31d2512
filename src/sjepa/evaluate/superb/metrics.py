"""Error rates and slot scores, all in percent."""

import re
from collections.abc import Hashable, Sequence

import numpy as np

from sjepa.evaluate.metric import Better, Metric

Sentences = Sequence[str]


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Fewest insertions, deletions and substitutions that turn one sequence into the other."""
    numbers: dict[Hashable, int] = {}
    first, second = (np.array([numbers.setdefault(item, len(numbers)) for item in items], int) for items in (a, b))
    steps = np.arange(len(second) + 1)
    row = steps
    for item in first:
        best = np.minimum(row[1:] + 1, row[:-1] + (second != item))  # a deletion, or a substitution or match
        row = np.concatenate([row[:1] + 1, best])
        row = np.minimum.accumulate(row - steps) + steps  # insertions, all at once
    return int(row[-1])


def error_rate(hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]) -> float:
    """Edits over the length of the references, both summed over all sentences."""
    edits = sum(edit_distance(h, r) for h, r in zip(hypotheses, references, strict=True))
    return 100.0 * edits / max(1, sum(len(r) for r in references))


def word_error_rate(hypotheses: Sentences, references: Sentences) -> float:
    """WER; also PER, where the words are phones."""
    return error_rate([h.split() for h in hypotheses], [r.split() for r in references])


def character_error_rate(hypotheses: Sentences, references: Sentences) -> float:
    """CER, with every space counted as a character: also the one that ends a transcript, as s3prl counts it."""
    return error_rate(hypotheses, references)


def accuracy(hypotheses: Sequence[Hashable], references: Sequence[Hashable]) -> float:
    return 100.0 * sum(h == r for h, r in zip(hypotheses, references, strict=True)) / max(1, len(references))


def balanced_accuracy(hypotheses: Sequence[Hashable], references: Sequence[Hashable]) -> float:
    """Accuracy within each class of the references, averaged over the classes."""
    right: dict[Hashable, list[bool]] = {}
    for h, r in zip(hypotheses, references, strict=True):
        right.setdefault(r, []).append(h == r)
    return 100.0 * float(np.mean([np.mean(flags) for flags in right.values()]))


def slot_f1(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """F1 of slots and their values over all utterances; a slot that is not there has no value."""

    def pairs(labels: Sequence[Sequence[str]]) -> set[Hashable]:
        return {(i, slot, value) for i, label in enumerate(labels) for slot, value in enumerate(label) if value}

    found, wanted = pairs(hypotheses), pairs(references)
    return 100.0 * 2 * len(found & wanted) / max(1, len(found) + len(wanted))


def slots(sentence: str) -> dict[str, list[str]]:
    """Values of each slot type in a sentence with `B-slot value E-slot` marks; marks inside a value are dropped."""
    found: dict[str, list[str]] = {}
    for kind, value in re.findall(r"B-(\S+) (.+?) E-\1", re.sub(" +", " ", sentence)):
        value = re.sub(r" E-\S+", "", re.sub(r"B-\S+ ", "", value))
        found.setdefault(kind, []).append(value)
    return found


def f1(found: set[str], wanted: set[str]) -> float:
    """F1 of two sets; two empty ones agree."""
    return 2 * len(found & wanted) / (len(found) + len(wanted)) if found or wanted else 1.0


def slot_type_f1(hypotheses: Sentences, references: Sentences) -> float:
    """F1 over the set of slot types of each utterance, averaged over utterances."""
    scores = [f1(set(slots(h)), set(slots(r))) for h, r in zip(hypotheses, references, strict=True)]
    return 100.0 * float(np.mean(scores))


def slot_value_cer(hypotheses: Sentences, references: Sentences) -> float:
    """Characters wrong in slot values: each reference value against the best hypothesis of its type, or nothing."""
    pairs = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found = slots(hypothesis)
        for kind, values in slots(reference).items():
            for value in values:
                pairs.append((min(found.get(kind, [""]), key=lambda h: edit_distance(h, value)), value))
    return error_rate([h for h, _ in pairs], [r for _, r in pairs])


def equal_error_rate(scores: Sequence[float], references: Sequence[str]) -> float:
    """Where false alarms and misses of a threshold are equally frequent; between two thresholds both are linear.

    References are "1" for a pair of one speaker and "0" for a pair of two.
    """
    wanted = np.array([reference == "1" for reference in references])
    order = np.argsort(-np.asarray(scores), kind="stable")
    ranked, hits = np.asarray(scores)[order], wanted[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # a threshold cannot divide equal scores
    misses = np.concatenate([[1.0], 1 - np.cumsum(hits)[last] / wanted.sum()])
    alarms = np.concatenate([[0.0], np.cumsum(~hits)[last] / (~wanted).sum()])
    after = int(np.argmax(alarms >= misses))
    before = after - 1
    fall, rise = misses[before] - misses[after], alarms[after] - alarms[before]
    share = (misses[before] - alarms[before]) / (fall + rise)
    return 100.0 * float(alarms[before] + share * rise)


WER = Metric("wer", Better.LOWER, score=word_error_rate)
CER = Metric("cer", Better.LOWER, score=character_error_rate)
PER = Metric("per", Better.LOWER, score=word_error_rate)
MTWV = Metric("mtwv")
DER = Metric("der", Better.LOWER)
FRAME_DER = Metric("frame_der", Better.LOWER)
FRAME_ACCURACY = Metric("frame_accuracy")
EER = Metric("eer", Better.LOWER, score=equal_error_rate)
ACCURACY = Metric("accuracy", score=accuracy)
BALANCED_ACCURACY = Metric("balanced_accuracy", score=balanced_accuracy)
SLOT_F1 = Metric("slot_f1", score=slot_f1)
SLOT_TYPE_F1 = Metric("slot_type_f1", score=slot_type_f1)
SLOT_VALUE_CER = Metric("slot_value_cer", Better.LOWER, score=slot_value_cer)
