"""Names in figures and reports: the distributions over the components, and when a calibration was measured."""

from collections.abc import Mapping
from typing import Any

LABELS = {
    "visible": "cluster head, visible frames",
    "masked": "predictor, masked frames",
    "target": "target",
    "plain": "target at temperature 1",
}
"""The distributions of a frame, with a label for each. The first two are the model's two paths."""
PATHS = ("visible", "masked")


def calibration_moment(calibration: Mapping[str, Any]) -> str:
    """When in training a calibration was measured, as part of a sentence."""
    step = calibration.get("checkpoint_step")
    return "at the end of phase 1" if step is None else f"at step {step:,}"
