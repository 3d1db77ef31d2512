"""A run directory: file names, settings, events, checkpoints, and its encoder. Reading a run needs no torch."""
