"""Evaluation of frozen encoders."""
