"""Corpus readers of the tasks, one module per layout."""
