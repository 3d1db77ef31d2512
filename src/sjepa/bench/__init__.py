"""Measurements of this machine: a module a subject, each with `run(arguments)`."""
