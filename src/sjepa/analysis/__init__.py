"""Figures of a run: each subject writes JSON first and draws from it."""
