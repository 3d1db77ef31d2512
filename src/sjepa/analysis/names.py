"""What distributions over the components are called."""

LABELS = {
    "visible": "cluster head, visible frames",
    "masked": "predictor, masked frames",
    "target": "target",
    "plain": "target at temperature 1",
}
"""The distributions of a frame by name, in words. The first two are the model's two paths."""
PATHS = ("visible", "masked")
