"""The maximum term-weighted value (MTWV) of spoken term detection."""

from collections.abc import Mapping

import numpy as np

from sjepa.evaluate.superb.corpora.quesst import Truth

# The scoring tool of QUESST: a false alarm costs 1, a miss 100, and one trial in 1,250 is a target.
FALSE_ALARM_COST, MISS_COST, PRIOR = 1.0, 100.0, 0.0008
WEIGHT = FALSE_ALARM_COST * (1 - PRIOR) / (MISS_COST * PRIOR)
DEFAULT_SCORE = -10.0  # for trials without a score


def maximum_term_weighted_value(scores: Mapping[str, Mapping[str, float]], truth: Truth) -> float:
    """Return MTWV in percent: the best over thresholds of 1 - the mean of misses + `WEIGHT` x false alarms.

    `scores` has the score of each document for each query. A score at or above the threshold is a detection. Queries
    that occur in no document are ignored. Trials without a score have `DEFAULT_SCORE`.
    """
    gains: list[np.ndarray] = []
    levels: list[np.ndarray] = []
    default_gain = 0.0  # gain of a threshold below `DEFAULT_SCORE`
    for query, documents in truth.documents.items():
        scored = {name: score for name, score in scores.get(query, {}).items() if score > DEFAULT_SCORE}
        hit, alarm = 1 / len(documents), -WEIGHT / max(1, truth.trials - len(documents))
        gains.append(np.array([hit if name in documents else alarm for name in scored]))
        levels.append(np.array(list(scored.values())))
        missing_targets = len(documents - scored.keys())
        default_gain += missing_targets * hit + (truth.trials - len(scored) - missing_targets) * alarm
    gain, level = np.concatenate(gains), np.concatenate(levels)
    order = np.argsort(-level, kind="stable")
    total = np.cumsum(gain[order])
    last = np.append(level[order][1:] != level[order][:-1], True)[: len(total)]
    best = max([0.0, *total[last], (total[-1] if len(total) else 0.0) + default_gain])
    return 100.0 * float(best) / len(truth.documents)
