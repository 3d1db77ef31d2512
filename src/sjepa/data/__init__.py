"""Corpora, batches and masks."""
