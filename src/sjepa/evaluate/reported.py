"""Published results for comparison in tables. None of them was measured here.

SUPERB rows are from the S-JEPA paper, which quotes its baselines from the public SUPERB leaderboard. DinoSR and SpidR
are from the SpidR paper. The S-JEPA paper reports only ASR, ER and SF, so no row has KS, IC or SID. Probe rows are
Table 2 of the paper: LibriSpeech dev-clean, last layer, 67 phonemes, random frames, mean and standard deviation over
splits.
"""

from dataclasses import dataclass, field

from sjepa.evaluate.metric import Metric, column_name
from sjepa.evaluate.superb.metrics import ACCURACY, CER, PER, SLOT_TYPE_F1, SLOT_VALUE_CER, WER


@dataclass(frozen=True)
class ReportedResult:
    """Published scores of one encoder."""

    name: str
    millions: float | None
    """Parameters in millions, as reported."""
    scores: dict[str, float]
    """Scores by table column."""
    metrics: dict[str, Metric] = field(repr=False)
    """The metric of each column."""
    deviations: dict[str, float] = field(default_factory=dict)
    """Standard deviations over splits, if reported."""


def make_row(name: str, millions: float | None, scores: dict[tuple[str, Metric], float]) -> ReportedResult:
    """Make a row from scores by task name and metric."""
    columns = {column_name(task, metric.name): metric for task, metric in scores}
    return ReportedResult(name, millions, dict(zip(columns, scores.values(), strict=True)), columns)


def make_superb_row(name: str, millions: float, wer: float, er: float, f1: float, cer: float) -> ReportedResult:
    scores = {("asr", WER): wer, ("er", ACCURACY): er, ("sf", SLOT_TYPE_F1): f1, ("sf", SLOT_VALUE_CER): cer}
    return make_row(name, millions, scores)


def add_language_model(row: ReportedResult, decoder: str, scores: dict[Metric, float]) -> ReportedResult:
    """Add ASR scores with a language model to a row."""
    columns = {column_name("asr", metric.name, decoder): metric for metric in scores}
    more = dict(zip(columns, scores.values(), strict=True))
    return ReportedResult(row.name, row.millions, row.scores | more, row.metrics | columns)


SUPERB = [
    make_superb_row("modified CPC", 1.8, 20.18, 60.96, 71.19, 49.91),
    make_superb_row("APC", 4.1, 21.28, 59.33, 70.46, 50.89),
    make_superb_row("VQ-APC", 4.6, 21.20, 59.66, 68.53, 52.91),
    make_superb_row("PASE+", 7.8, 25.11, 57.86, 62.14, 60.17),
    make_superb_row("NPC", 19.4, 20.20, 59.08, 72.79, 48.44),
    make_superb_row("TERA", 21.3, 18.17, 56.27, 67.50, 54.17),
    make_superb_row("DistilHuBERT", 23.5, 13.37, 63.02, 82.57, 35.59),
    make_superb_row("wav2vec", 32.5, 15.86, 59.79, 76.37, 43.71),
    make_superb_row("vq-wav2vec", 34.2, 17.71, 58.24, 77.68, 41.54),
    add_language_model(
        make_row(
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
    make_superb_row("Mockingjay", 85.1, 22.82, 50.28, 61.59, 58.89),
    make_superb_row("DeCoAR 2.0", 89.8, 13.02, 62.47, 83.28, 34.73),
    make_superb_row("HuBERT Base", 94.7, 6.42, 64.92, 88.53, 25.20),
    make_superb_row("WavLM Base", 94.7, 6.21, 65.94, 89.38, 22.86),
    make_superb_row("WavLM Base+", 94.7, 5.59, 68.65, 90.58, 21.20),
    make_superb_row("wav2vec 2.0 Base", 95.0, 6.43, 63.43, 88.30, 24.77),
    make_row("DinoSR", None, {("pr", PER): 3.21, ("asr", WER): 4.71}),
    make_row("SpidR", None, {("pr", PER): 4.86, ("asr", WER): 7.47}),
    make_superb_row("HuBERT Large", 316.6, 3.62, 67.62, 89.81, 21.76),
    make_superb_row("WavLM Large", 316.6, 3.44, 70.62, 92.21, 18.36),
    make_superb_row("wav2vec 2.0 Large", 316.6, 3.75, 65.64, 87.11, 27.31),
]


PROBE_COLUMNS = ("speaker", "gender", "chapter", "phoneme linear, random frames", "phoneme mlp, random frames")


def make_probe_row(name: str, millions: float, *found: tuple[float, float]) -> ReportedResult:
    """Make a row from the mean and deviation of each probe."""
    means, deviations = zip(*found, strict=True)
    scores, spread = (dict(zip(PROBE_COLUMNS, values, strict=True)) for values in (means, deviations))
    return ReportedResult(name, millions, scores, {column: Metric(column) for column in scores}, spread)


PROBES = [
    make_probe_row("S-JEPA (paper)", 51.8, (99.7, 0.3), (99.6, 0.3), (93.2, 1.0), (82.8, 0.1), (88.0, 0.1)),
    make_probe_row("HuBERT Base", 94.7, (99.1, 0.3), (99.5, 0.3), (88.2, 1.0), (84.8, 0.1), (86.5, 0.1)),
    make_probe_row("WavLM Base", 94.7, (91.1, 1.0), (96.3, 0.5), (59.5, 1.0), (86.1, 0.2), (87.5, 0.1)),
]
