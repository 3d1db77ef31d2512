"""Results that others reported, for tables; none of them was measured here.

SUPERB rows are those of the S-JEPA paper, whose baselines are the public board's; DinoSR and SpidR are from SpidR's
authors. Probe rows are the S-JEPA paper's: LibriSpeech dev-clean, last layer, 67 phonemes, random frames.
"""

from typing import NamedTuple


class Reported(NamedTuple):
    name: str
    millions: float | None
    """Parameters in millions, as reported."""
    scores: dict[str, float]


def superb(name: str, millions: float, wer: float, er: float, f1: float, cer: float) -> Reported:
    scores = {"asr wer": wer, "er accuracy": er, "sf slot_type_f1": f1, "sf slot_value_cer": cer}
    return Reported(name, millions, scores)


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
    Reported(
        "S-JEPA (paper)",
        51.8,
        {
            "asr wer": 12.10,
            "asr cer": 3.62,
            "asr+lm (paper) wer": 8.50,
            "asr+lm (paper) cer": 2.90,
            "er accuracy": 64.83,
            "sf slot_type_f1": 83.05,
            "sf slot_value_cer": 33.17,
        },
    ),
    superb("Mockingjay", 85.1, 22.82, 50.28, 61.59, 58.89),
    superb("DeCoAR 2.0", 89.8, 13.02, 62.47, 83.28, 34.73),
    superb("HuBERT Base", 94.7, 6.42, 64.92, 88.53, 25.20),
    superb("WavLM Base", 94.7, 6.21, 65.94, 89.38, 22.86),
    superb("WavLM Base+", 94.7, 5.59, 68.65, 90.58, 21.20),
    superb("wav2vec 2.0 Base", 95.0, 6.43, 63.43, 88.30, 24.77),
    Reported("DinoSR", None, {"pr per": 3.21, "asr wer": 4.71}),
    Reported("SpidR", None, {"pr per": 4.86, "asr wer": 7.47}),
    superb("HuBERT Large", 316.6, 3.62, 67.62, 89.81, 21.76),
    superb("WavLM Large", 316.6, 3.44, 70.62, 92.21, 18.36),
    superb("wav2vec 2.0 Large", 316.6, 3.75, 65.64, 87.11, 27.31),
]


def probes(
    name: str, millions: float, speaker: float, gender: float, chapter: float, linear: float, mlp: float
) -> Reported:
    phones = {"phoneme linear, random frames": linear, "phoneme mlp, random frames": mlp}
    return Reported(name, millions, {"speaker": speaker, "gender": gender, "chapter": chapter} | phones)


PROBES = [
    probes("S-JEPA (paper)", 51.8, 99.7, 99.6, 93.2, 82.8, 88.0),
    probes("HuBERT Base", 94.7, 99.1, 99.5, 88.2, 84.8, 86.5),
    probes("WavLM Base", 94.7, 91.1, 96.3, 59.5, 86.1, 87.5),
]
