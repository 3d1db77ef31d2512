"""Agreement of discrete units with phones, and the metrics of `sjepa units`."""

import numpy as np

from sjepa.evaluate.metric import Better, Metric

METRICS = (
    Metric("phone_purity", digits=3),
    Metric("cluster_purity", digits=3),
    Metric("pnmi", digits=3),
    Metric("perplexity", Better.NEITHER),
    Metric("units_used", Better.NEITHER, digits=0),
    Metric("abx_within", Better.LOWER),
    Metric("abx_across", Better.LOWER),
    Metric("abx_triphone_within", Better.LOWER),
    Metric("abx_triphone_across", Better.LOWER),
)


def measure_agreement(units: np.ndarray, phones: np.ndarray) -> dict[str, float]:
    """Measure the agreement of units and phones of the same frames, as in the HuBERT paper.

    Phone purity is the accuracy of predicting each unit's most frequent phone. Cluster purity swaps the two. PNMI is
    the fraction of the phone entropy that the units explain. Perplexity is 2 to the power of the unit entropy.
    """
    _, unit = np.unique(units, return_inverse=True)
    _, phone = np.unique(phones, return_inverse=True)
    joint = np.zeros((unit.max() + 1, phone.max() + 1))
    np.add.at(joint, (unit, phone), 1 / len(unit))
    phone_entropy = entropy(joint.sum(0))
    information = entropy(joint.sum(1)) + phone_entropy - entropy(joint.ravel())
    return {
        "phone_purity": float(joint.max(1).sum()),
        "cluster_purity": float(joint.max(0).sum()),
        "pnmi": float(information / phone_entropy) if phone_entropy else 0.0,
        "perplexity": float(2 ** entropy(joint.sum(1))),
        "units_used": float(len(joint)),
    }


def entropy(distribution: np.ndarray) -> float:
    """Return the entropy in bits."""
    positive = distribution[distribution > 0]
    return float(-(positive * np.log2(positive)).sum())
