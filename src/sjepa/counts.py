"""Counts for people: with the noun in singular or plural, and of what a message leaves out."""

from collections.abc import Sequence


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 file`, `1,200 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def name_first(items: Sequence[object], most: int = 1) -> str:
    """Return the first items, and how many more there are: `a`, `a and 4 more`, `a, b and 3 more`."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more
