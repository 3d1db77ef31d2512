"""What looks wrong in a run. An alarm has a code, which programs compare, and a message for people."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

WAITING = 0.1  # share of the time that a GPU may wait for audio
EARLY = 0.2  # of a phase: before it, predictions at chance are no alarm
Code = Literal[
    "targets-collapsed",
    "targets-uniform",
    "nothing-learned",
    "dead-components",
    "targets-drift",
    "skipped-steps",
    "waiting-for-data",
]


class Alarm(TypedDict):
    """As metrics.jsonl holds it."""

    code: str
    """A `Code`; in a log from before alarms had codes, the message itself."""
    message: str


def find_alarms(values: Mapping[str, Any], components: int, progress: float, waiting: float = 0.0) -> list[Alarm]:
    """Alarms of a logged interval that lies `progress` (0 to 1) into its phase; `waiting` is a GPU's share of it."""
    found: list[Alarm] = []

    def add(code: Code, message: str) -> None:
        found.append({"code": code, "message": message})

    perplexity, masked, visible = values["target_perplexity"], values["accuracy_masked"], values["accuracy_visible"]
    spread = perplexity > 0.9 * components
    if perplexity < 1.5:
        add(
            "targets-collapsed",
            f"targets have collapsed: nearly every frame falls to one component (perplexity {perplexity:.2f})",
        )
    if spread and values["target_entropy"] > 0.9 * math.log2(components):
        add("targets-uniform", "targets say nothing: posteriors are nearly uniform; is the temperature too high?")
    if spread and progress > EARLY and max(masked, visible) < 2 / components:
        add(
            "nothing-learned",
            f"nothing is learned: {visible:.1%} of visible frames are right, chance for {components} components",
        )
    if values["dead_components"] > 0.5 * components:
        add(
            "dead-components",
            f"{values['dead_components']} of {components} components are dead; lower K or the mixture's decay",
        )
    # Frames that are not in the loss say nothing about the targets, nor do targets that do not move.
    if values["visible_loss"] and values["decay"] is not None and masked > visible + 0.05:
        add(
            "targets-drift",
            f"masked frames are predicted better than visible ones ({masked:.0%} against {visible:.0%}): the targets "
            "drift to what is easy to predict; use slower decays (ema, gmm.decay) or a lower learning rate",
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
    """The alarms of a line whose code the line before does not have."""
    known = {alarm["code"] for alarm in before}
    return [alarm for alarm in found if alarm["code"] not in known]


def read_alarms(line: Mapping[str, Any]) -> list[Alarm]:
    """The alarms of a train line of metrics.jsonl; in older logs an alarm is its message alone."""
    logged: list[Alarm | str] = line.get("alarms") or []
    return [{"code": each, "message": each} if isinstance(each, str) else each for each in logged]
