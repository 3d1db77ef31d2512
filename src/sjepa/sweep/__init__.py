"""Sweeps: a file of variations becomes a set of runs that share their first phases, and one comparison page."""
