"""A run directory: file names, settings, events and checkpoints. Reading a run needs no torch."""
