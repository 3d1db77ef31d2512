"""Analyses of a run. Each subject saves its findings as JSON and draws its figure from that file."""
