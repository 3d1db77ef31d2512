"""Readers of the corpora of tasks, each in its own layout."""
