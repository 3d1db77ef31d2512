"""Error rates and slot scores, all in percent."""

import re
from collections.abc import Hashable, Sequence

import numpy as np

from sjepa.evaluate.metric import Better, Metric

Sentences = Sequence[str]


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the smallest number of insertions, deletions and substitutions between two sequences."""
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
    """Return total edits divided by total reference length, in percent."""
    edits = sum(edit_distance(h, r) for h, r in zip(hypotheses, references, strict=True))
    return 100.0 * edits / max(1, sum(len(r) for r in references))


def word_error_rate(hypotheses: Sentences, references: Sentences) -> float:
    """Return WER, or PER if the words are phones."""
    return error_rate([h.split() for h in hypotheses], [r.split() for r in references])


def character_error_rate(hypotheses: Sentences, references: Sentences) -> float:
    """Return CER. Every space counts as a character, including the final one, as in s3prl."""
    return error_rate(hypotheses, references)


def accuracy(hypotheses: Sequence[Hashable], references: Sequence[Hashable]) -> float:
    return 100.0 * sum(h == r for h, r in zip(hypotheses, references, strict=True)) / max(1, len(references))


def balanced_accuracy(hypotheses: Sequence[Hashable], references: Sequence[Hashable]) -> float:
    """Return the accuracy averaged over the classes of the references."""
    right: dict[Hashable, list[bool]] = {}
    for h, r in zip(hypotheses, references, strict=True):
        right.setdefault(r, []).append(h == r)
    return 100.0 * float(np.mean([np.mean(flags) for flags in right.values()]))


def slot_f1(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Return F1 of slots and their values over all utterances. Missing slots have an empty value."""

    def pairs(labels: Sequence[Sequence[str]]) -> set[Hashable]:
        return {(i, slot, value) for i, label in enumerate(labels) for slot, value in enumerate(label) if value}

    found, wanted = pairs(hypotheses), pairs(references)
    return 100.0 * 2 * len(found & wanted) / max(1, len(found) + len(wanted))


def parse_slots(sentence: str) -> dict[str, list[str]]:
    """Return the values of each slot type in a sentence with `B-slot value E-slot` marks, without inner marks.

    As in s3prl, `B-` inside a word counts as a mark too.
    """
    found: dict[str, list[str]] = {}
    for kind, value in re.findall(r"B-(\S+) (.+?) E-\1", re.sub(" +", " ", sentence)):
        value = re.sub(r" E-\S+", "", re.sub(r"B-\S+ ", "", value))
        found.setdefault(kind, []).append(value)
    return found


def f1_score(found: set[str], wanted: set[str]) -> float:
    """Return F1 of two sets, 1 if both are empty."""
    return 2 * len(found & wanted) / (len(found) + len(wanted)) if found or wanted else 1.0


def slot_type_f1(hypotheses: Sentences, references: Sentences) -> float:
    """Return F1 of the slot types of each utterance, averaged over utterances."""
    scores = [f1_score(set(parse_slots(h)), set(parse_slots(r))) for h, r in zip(hypotheses, references, strict=True)]
    return 100.0 * float(np.mean(scores))


def slot_value_cer(hypotheses: Sentences, references: Sentences) -> float:
    """Return CER of slot values: each reference value against the best hypothesis of its type, or an empty one."""
    pairs = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found = parse_slots(hypothesis)
        for kind, values in parse_slots(reference).items():
            for value in values:
                pairs.append((min(found.get(kind, [""]), key=lambda h: edit_distance(h, value)), value))
    return error_rate([h for h, _ in pairs], [r for _, r in pairs])


def equal_error_rate(scores: Sequence[float], references: Sequence[str]) -> float:
    """Return the rate at which false alarms and misses are equal, interpolated between thresholds.

    References are "1" for the same speaker and "0" for different speakers.
    """
    wanted = np.array([reference == "1" for reference in references])
    order = np.argsort(-np.asarray(scores), kind="stable")
    ranked, hits = np.asarray(scores)[order], wanted[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # a threshold cannot separate equal scores
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
