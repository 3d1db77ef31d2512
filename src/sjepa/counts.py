"""Counts for people, with the noun in singular or plural."""


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 file`, `1,200 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"
