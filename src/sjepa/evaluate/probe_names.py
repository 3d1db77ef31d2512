"""Names in the results of probes: keys of `results.json` and columns of tables."""

from collections.abc import Iterable
from enum import StrEnum


class ProbeName(StrEnum):
    """The probes. Values are keys of result files, so they must not change."""

    SPEAKER = "speaker"
    GENDER = "gender"
    CHAPTER = "chapter"
    PHONE_LINEAR_RANDOM = "phoneme linear, random frames"
    PHONE_LINEAR_HELD_OUT = "phoneme linear, held-out speakers"
    PHONE_MLP_RANDOM = "phoneme mlp, random frames"
    PHONE_MLP_HELD_OUT = "phoneme mlp, held-out speakers"
    PITCH = "pitch R²"
    ENERGY = "energy R²"
    STRESS = "stress linear, held-out speakers"
    TONE = "tone linear, held-out speakers"


REGRESSIONS = {ProbeName.PITCH, ProbeName.ENERGY}


def name_scores(probes: Iterable[str]) -> str:
    """Return what the scores of these probes are. Regressions have R², all others an accuracy."""
    return "accuracy or R²" if REGRESSIONS.intersection(probes) else "accuracy"


def state_name(state: int, states: int) -> str:
    """Return the name of a hidden state, given the number of states of its encoder.

    State 0 is the input of layer 0, state l + 1 the output of layer l.
    """
    if states == 1:
        return "features"
    return "input" if state == 0 else f"layer {state - 1}"
