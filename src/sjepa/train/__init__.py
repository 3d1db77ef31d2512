"""The training loop, and the state of a run in training."""
