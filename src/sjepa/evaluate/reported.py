"""Published results for comparison in tables. None of them was measured here.

SUPERB rows are from the public SUPERB leaderboard, whose learning rates were swept. The S-JEPA paper quotes the same
values for ASR, ER and SF, the only tasks it reports. DinoSR and SpidR are from the SpidR paper. Probe rows are Table 2
of the S-JEPA paper: LibriSpeech dev-clean, last layer, 67 phonemes, random frames, mean and standard deviation over
splits.
"""

from dataclasses import dataclass, field

from sjepa.evaluate.metric import DecoderName, Metric, column_name
from sjepa.evaluate.probe_names import ProbeName
from sjepa.evaluate.superb.metrics import ACCURACY, CER, DER, EER, MTWV, PER, SLOT_TYPE_F1, SLOT_VALUE_CER, WER


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


LEADERBOARD_TASKS = (
    ("asr", WER),
    ("pr", PER),
    ("ks", ACCURACY),
    ("ic", ACCURACY),
    ("sid", ACCURACY),
    ("er", ACCURACY),
    ("sf", SLOT_TYPE_F1),
    ("sf", SLOT_VALUE_CER),
    ("qbe", MTWV),
    ("asv", EER),
    ("sd", DER),
)


def make_leaderboard_row(name: str, millions: float, asr_with_lm: float, *values: float) -> ReportedResult:
    """Make a row from WER with the leaderboard's language model and a value for each of `LEADERBOARD_TASKS`."""
    row = make_row(name, millions, dict(zip(LEADERBOARD_TASKS, values, strict=True)))
    return add_language_model(row, DecoderName.BOARD, {WER: asr_with_lm})


def add_language_model(row: ReportedResult, decoder: DecoderName, scores: dict[Metric, float]) -> ReportedResult:
    """Add ASR scores with a language model to a row."""
    columns = {column_name("asr", metric.name, decoder): metric for metric in scores}
    more = dict(zip(columns, scores.values(), strict=True))
    return ReportedResult(row.name, row.millions, row.scores | more, row.metrics | columns)


# Millions of parameters, ASR with a language model, then `LEADERBOARD_TASKS`. F1 and CER are those of SF.
# fmt: off
LEADERBOARD = [
    # encoder              size  w/ LM    ASR     PR     KS     IC    SID     ER     F1    CER    QbE    ASV     SD
    ("modified CPC",       1.8, 13.53, 20.18, 42.54, 91.88, 64.09, 39.63, 60.96, 71.19, 49.91,  3.26, 12.86, 10.38),
    ("APC",                4.1, 14.74, 21.28, 41.98, 91.01, 74.69, 60.42, 59.33, 70.46, 50.89,  3.10,  8.56, 10.53),
    ("VQ-APC",             4.6, 15.21, 21.20, 41.08, 91.11, 74.48, 60.15, 59.66, 68.53, 52.91,  2.51,  8.72, 10.45),
    ("PASE+",              7.8, 16.62, 25.11, 58.87, 82.54, 29.82, 37.99, 57.86, 62.14, 60.17,  0.72, 11.61,  8.68),
    ("NPC",               19.4, 13.91, 20.20, 43.81, 88.96, 69.44, 55.92, 59.08, 72.79, 48.44,  2.46,  9.40,  9.34),
    ("TERA",              21.3, 12.16, 18.17, 49.17, 89.48, 58.42, 57.57, 56.27, 67.50, 54.17,  0.13, 15.89,  9.96),
    ("DistilHuBERT",      23.5,  9.22, 13.37, 16.27, 95.98, 94.99, 73.54, 63.02, 82.57, 35.59,  5.11,  8.55,  6.19),
    ("wav2vec",           32.5, 11.00, 15.86, 31.58, 95.59, 84.92, 56.56, 59.79, 76.37, 43.71,  4.85,  7.99,  9.90),
    ("vq-wav2vec",        34.2, 12.80, 17.71, 33.48, 93.38, 85.68, 38.80, 58.24, 77.68, 41.54,  4.10, 10.38,  9.93),
    ("Mockingjay",        85.1, 15.48, 22.82, 70.19, 83.67, 34.33, 32.29, 50.28, 61.59, 58.89,  0.07, 11.66, 10.54),
    ("DeCoAR 2.0",        89.8,  9.07, 13.02, 14.93, 94.48, 90.80, 74.42, 62.47, 83.28, 34.73,  4.06,  7.16,  6.59),
    ("HuBERT Base",       94.7,  4.79,  6.42,  5.41, 96.30, 98.34, 81.42, 64.92, 88.53, 25.20,  7.36,  5.11,  5.88),
    ("WavLM Base",        94.7,  4.59,  6.21,  4.84, 96.79, 98.63, 84.51, 65.94, 89.38, 22.86,  8.70,  4.69,  4.55),
    ("WavLM Base+",       94.7,  4.02,  5.59,  3.92, 97.37, 99.00, 89.42, 68.65, 90.58, 21.20,  9.88,  4.07,  3.50),
    ("wav2vec 2.0 Base",  95.0,  4.79,  6.43,  5.74, 96.23, 92.35, 75.18, 63.43, 88.30, 24.77,  2.33,  6.02,  6.08),
    ("HuBERT Large",     316.6,  2.94,  3.62,  3.53, 95.29, 98.76, 90.33, 67.62, 89.81, 21.76,  3.53,  5.98,  5.75),
    ("WavLM Large",      316.6,  2.95,  3.44,  3.06, 97.86, 99.31, 95.49, 70.62, 92.21, 18.36,  8.86,  3.77,  3.24),
    ("wav2vec 2.0 Large",316.6,  3.10,  3.75,  4.75, 96.66, 95.28, 86.14, 65.64, 87.11, 27.31,  4.89,  5.65,  5.62),
]
# fmt: on

SUPERB = [
    *(make_leaderboard_row(*row) for row in LEADERBOARD),
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
        DecoderName.PAPER,
        {WER: 8.50, CER: 2.90},
    ),
    make_row("DinoSR", None, {("pr", PER): 3.21, ("asr", WER): 4.71}),
    make_row("SpidR", None, {("pr", PER): 4.86, ("asr", WER): 7.47}),
]


PROBE_COLUMNS = (
    ProbeName.SPEAKER,
    ProbeName.GENDER,
    ProbeName.CHAPTER,
    ProbeName.PHONE_LINEAR_RANDOM,
    ProbeName.PHONE_MLP_RANDOM,
)


def make_probe_row(name: str, millions: float, *found: tuple[float, float]) -> ReportedResult:
    """Make a row from the mean and deviation of each probe."""
    means, deviations = zip(*found, strict=True)
    columns = [name.value for name in PROBE_COLUMNS]
    scores, spread = (dict(zip(columns, values, strict=True)) for values in (means, deviations))
    return ReportedResult(name, millions, scores, {column: Metric(column) for column in scores}, spread)


PROBES = [
    make_probe_row("S-JEPA (paper)", 51.8, (99.7, 0.3), (99.6, 0.3), (93.2, 1.0), (82.8, 0.1), (88.0, 0.1)),
    make_probe_row("HuBERT Base", 94.7, (99.1, 0.3), (99.5, 0.3), (88.2, 1.0), (84.8, 0.1), (86.5, 0.1)),
    make_probe_row("WavLM Base", 94.7, (91.1, 1.0), (96.3, 0.5), (59.5, 1.0), (86.1, 0.2), (87.5, 0.1)),
]
