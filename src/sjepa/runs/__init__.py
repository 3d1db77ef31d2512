"""A run folder: file names, settings, events, checkpoints, and its encoder. Reading a run needs no torch."""
