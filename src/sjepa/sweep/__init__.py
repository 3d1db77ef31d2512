"""Sweeps: one file describes many runs, which share their first phases and are compared on one page."""
