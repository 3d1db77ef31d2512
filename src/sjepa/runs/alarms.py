"""What looks wrong in a run, in plain words."""

import math
import re
from collections.abc import Sequence
from typing import Any

EARLY = 0.2  # of a phase: before it, predictions at chance are no alarm


def kind(alarm: str) -> str:
    """Alarms of one kind differ in their numbers only."""
    return re.sub(r"\d[\d.,]*", "#", alarm)


def new_of(found: Sequence[str], before: Sequence[str]) -> list[str]:
    """Of a line's alarms those of a kind that the line before did not have."""
    known = set(map(kind, before))
    return [alarm for alarm in found if kind(alarm) not in known]


def alarms(values: dict[str, Any], components: int, progress: float, visible_trained: bool = True) -> list[str]:
    """Sentences about a logged interval that lies `progress` (0 to 1) into its phase.

    Visible frames that were never trained say nothing about the targets.
    """
    found = []
    perplexity, masked, visible = values["target_perplexity"], values["accuracy_masked"], values["accuracy_visible"]
    spread = perplexity > 0.9 * components
    if perplexity < 1.5:
        found.append(f"targets have collapsed: nearly every frame falls to one component (perplexity {perplexity:.2f})")
    if spread and values["target_entropy"] > 0.9 * math.log2(components):
        found.append("targets say nothing: posteriors are nearly uniform; is the temperature too high?")
    if spread and progress > EARLY and max(masked, visible) < 2 / components:
        found.append(
            f"nothing is learned: {visible:.1%} of visible frames are right, chance for {components} components"
        )
    if values["dead_components"] > 0.5 * components:
        found.append(f"{values['dead_components']} of {components} components are dead; lower K or the mixture's decay")
    if visible_trained and masked > visible + 0.05 and values["phase"] == 2:
        found.append(
            f"masked frames are predicted better than visible ones ({masked:.0%} against {visible:.0%}): the targets "
            "drift to what is easy to predict; use slower decays (ema, gmm.decay) or a lower learning rate"
        )
    if values["skipped_steps"]:
        found.append(f"{values['skipped_steps']} steps had no finite gradient and were skipped")
    return found
