"""Names of the distributions over the components."""

LABELS = {
    "visible": "cluster head, visible frames",
    "masked": "predictor, masked frames",
    "target": "target",
    "plain": "target at temperature 1",
}
"""The distributions of a frame, with a label for each. The first two are the model's two paths."""
PATHS = ("visible", "masked")
