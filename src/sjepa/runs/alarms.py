"""Alarms about a run in training. An alarm has a code for programs and a message for users."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

WAITING = 0.1  # a GPU may wait for audio during this share of the time
EARLY = 0.2  # share of a phase; before it, predictions at chance level raise no alarm
# A fall to half of the best accuracy at masked frames raises an alarm if the best was at least this, and this many
# times that of a uniform guess.
FALLS_FROM, TIMES_CHANCE = 0.15, 5
Code = Literal[
    "targets-collapsed",
    "targets-uniform",
    "nothing-learned",
    "accuracy-fell",
    "dead-components",
    "targets-drift",
    "skipped-steps",
    "waiting-for-data",
]


class Alarm(TypedDict):
    """An alarm as in metrics.jsonl."""

    code: str
    """A `Code`."""
    message: str


def find_alarms(
    values: Mapping[str, Any], components: int, progress: float, waiting: float = 0.0, best_masked: float = 0.0
) -> list[Alarm]:
    """Return the alarms of a logged interval at `progress` (0 to 1) of its phase.

    `waiting` is a share of GPU time. `best_masked` is the best accuracy so far at masked frames, with the same targets.
    """
    found: list[Alarm] = []

    def add(code: Code, message: str) -> None:
        found.append({"code": code, "message": message})

    perplexity, masked, visible = values["target_perplexity"], values["accuracy_masked"], values["accuracy_visible"]
    spread = perplexity > 0.9 * components
    if perplexity < 1.5:
        add(
            "targets-collapsed",
            f"targets have collapsed: nearly all frames belong to one component (perplexity {perplexity:.2f})",
        )
    if spread and values["target_entropy"] > 0.9 * math.log2(components):
        add(
            "targets-uniform",
            "targets are uninformative: posteriors are nearly uniform; is the temperature too high?",
        )
    chance = 1 / components
    if spread and progress > EARLY and max(masked, visible) < min(2 * chance, (1 + chance) / 2):
        add(
            "nothing-learned",
            f"nothing is learned: {max(masked, visible):.1%} of frames are predicted correctly; chance is {chance:.1%}",
        )
    if masked < best_masked / 2 and best_masked > max(FALLS_FROM, TIMES_CHANCE / components):
        add(
            "accuracy-fell",
            f"masked frames are predicted much worse than before ({masked:.0%}, before {best_masked:.0%}): stop, "
            "delete the checkpoints after the fall, and continue; if it happens again, use a lower learning rate",
        )
    if values["dead_components"] > 0.5 * components:
        add(
            "dead-components",
            f"{values['dead_components']} of {components} components are dead; lower K or the mixture's decay",
        )
    # Only frames in the loss and targets that change can show drift.
    if values["visible_loss"] and values["decay"] is not None and masked > visible + 0.05:
        add(
            "targets-drift",
            f"masked frames are predicted better than visible ones ({masked:.0%} against {visible:.0%}): the targets "
            "drift towards features that are easy to predict; use slower decays (ema, gmm.decay) or a lower learning "
            "rate",
        )
    if values["skipped_steps"]:
        add("skipped-steps", f"{values['skipped_steps']} steps had no finite gradient and were skipped")
    if waiting > WAITING:
        add(
            "waiting-for-data",
            f"training waits for audio {waiting:.0%} of the time: raise batches.workers, or shard "
            "the corpus (sjepa shard) onto a faster disk",
        )
    return found


def select_new(found: Sequence[Alarm], before: Sequence[Alarm]) -> list[Alarm]:
    """Return the alarms whose code is not among the alarms of the previous line."""
    known = {alarm["code"] for alarm in before}
    return [alarm for alarm in found if alarm["code"] not in known]


def read_alarms(line: Mapping[str, Any]) -> list[Alarm]:
    """Return the alarms of a train line of metrics.jsonl."""
    return line.get("alarms") or []
