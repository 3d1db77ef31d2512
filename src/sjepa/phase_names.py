"""Names of phases on the command line, in settings files and in run folders. Needs no torch."""

import re

NAME = re.compile(r"phase([1-9]\d{0,3})")


def phase_name(number: int) -> str:
    return f"phase{number}"


def phase_number(name: str) -> int | None:
    """Return the number of a phase, or None if this is not the name of one."""
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None
