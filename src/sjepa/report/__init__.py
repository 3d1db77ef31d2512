"""Figures and pages, made from the files that a run wrote."""
