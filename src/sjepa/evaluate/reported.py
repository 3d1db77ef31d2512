"""Results that others reported, for tables; none of them was measured here.

SUPERB rows are those of the S-JEPA paper, whose baselines are the public board's; DinoSR and SpidR are from SpidR's
authors. The paper reports ASR, ER and SF alone, so no row has KS, IC or SID. Probe rows are the paper's Table 2:
LibriSpeech dev-clean, last layer, 67 phonemes, random frames; mean and standard deviation over splits.
"""

from dataclasses import dataclass, field

from sjepa.evaluate.metric import Metric, column_name
from sjepa.evaluate.superb.metrics import ACCURACY, CER, PER, SLOT_TYPE_F1, SLOT_VALUE_CER, WER


@dataclass(frozen=True)
class Reported:
    name: str
    millions: float | None
    """Parameters in millions, as reported."""
    scores: dict[str, float]
    """By column of the table."""
    metrics: dict[str, Metric] = field(repr=False)
    """The metric of each column."""
    deviations: dict[str, float] = field(default_factory=dict)
    """Over splits, where they were reported."""


def tasks(name: str, millions: float | None, scores: dict[tuple[str, Metric], float]) -> Reported:
    """Scores of tasks, by the task's name and its metric."""
    columns = {column_name(task, metric.name): metric for task, metric in scores}
    return Reported(name, millions, dict(zip(columns, scores.values(), strict=True)), columns)


def superb(name: str, millions: float, wer: float, er: float, f1: float, cer: float) -> Reported:
    scores = {("asr", WER): wer, ("er", ACCURACY): er, ("sf", SLOT_TYPE_F1): f1, ("sf", SLOT_VALUE_CER): cer}
    return tasks(name, millions, scores)


def with_language_model(row: Reported, decoder: str, scores: dict[Metric, float]) -> Reported:
    """A row that also has scores of ASR with a language model."""
    columns = {column_name("asr", metric.name, decoder): metric for metric in scores}
    more = dict(zip(columns, scores.values(), strict=True))
    return Reported(row.name, row.millions, row.scores | more, row.metrics | columns)


SUPERB = [
    superb("modified CPC", 1.8, 20.18, 60.96, 71.19, 49.91),
    superb("APC", 4.1, 21.28, 59.33, 70.46, 50.89),
    superb("VQ-APC", 4.6, 21.20, 59.66, 68.53, 52.91),
    superb("PASE+", 7.8, 25.11, 57.86, 62.14, 60.17),
    superb("NPC", 19.4, 20.20, 59.08, 72.79, 48.44),
    superb("TERA", 21.3, 18.17, 56.27, 67.50, 54.17),
    superb("DistilHuBERT", 23.5, 13.37, 63.02, 82.57, 35.59),
    superb("wav2vec", 32.5, 15.86, 59.79, 76.37, 43.71),
    superb("vq-wav2vec", 34.2, 17.71, 58.24, 77.68, 41.54),
    with_language_model(
        tasks(
            "S-JEPA (paper)",
            51.8,
            {
                ("asr", WER): 12.10,
                ("asr", CER): 3.62,
                ("er", ACCURACY): 64.83,
                ("sf", SLOT_TYPE_F1): 83.05,
                ("sf", SLOT_VALUE_CER): 33.17,
            },
        ),
        "paper",
        {WER: 8.50, CER: 2.90},
    ),
    superb("Mockingjay", 85.1, 22.82, 50.28, 61.59, 58.89),
    superb("DeCoAR 2.0", 89.8, 13.02, 62.47, 83.28, 34.73),
    superb("HuBERT Base", 94.7, 6.42, 64.92, 88.53, 25.20),
    superb("WavLM Base", 94.7, 6.21, 65.94, 89.38, 22.86),
    superb("WavLM Base+", 94.7, 5.59, 68.65, 90.58, 21.20),
    superb("wav2vec 2.0 Base", 95.0, 6.43, 63.43, 88.30, 24.77),
    tasks("DinoSR", None, {("pr", PER): 3.21, ("asr", WER): 4.71}),
    tasks("SpidR", None, {("pr", PER): 4.86, ("asr", WER): 7.47}),
    superb("HuBERT Large", 316.6, 3.62, 67.62, 89.81, 21.76),
    superb("WavLM Large", 316.6, 3.44, 70.62, 92.21, 18.36),
    superb("wav2vec 2.0 Large", 316.6, 3.75, 65.64, 87.11, 27.31),
]


PROBED = ("speaker", "gender", "chapter", "phoneme linear, random frames", "phoneme mlp, random frames")


def probes(name: str, millions: float, *found: tuple[float, float]) -> Reported:
    """Mean and deviation over splits of each probe."""
    means, deviations = zip(*found, strict=True)
    scores, spread = (dict(zip(PROBED, values, strict=True)) for values in (means, deviations))
    return Reported(name, millions, scores, {column: Metric(column) for column in scores}, spread)


PROBES = [
    probes("S-JEPA (paper)", 51.8, (99.7, 0.3), (99.6, 0.3), (93.2, 1.0), (82.8, 0.1), (88.0, 0.1)),
    probes("HuBERT Base", 94.7, (99.1, 0.3), (99.5, 0.3), (88.2, 1.0), (84.8, 0.1), (86.5, 0.1)),
    probes("WavLM Base", 94.7, (91.1, 1.0), (96.3, 0.5), (59.5, 1.0), (86.1, 0.2), (87.5, 0.1)),
]
