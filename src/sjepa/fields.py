"""Check and name the fields of JSON and TOML files. Errors name the file and the field."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from sjepa.errors import UserError

# Exceptions that unexpected types, sizes or shapes of values cause.
SURPRISES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, AssertionError)


class Kind(NamedTuple):
    """The values that a field accepts."""

    words: str
    accepts: Callable[[Any], bool]


WHOLE = Kind("a whole number from 0", lambda value: type(value) is int and 0 <= value < 2**53)
NUMBER = Kind("a finite number", lambda value: type(value) in (int, float) and -1e300 < value < 1e300)
TEXT = Kind("text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TABLE = Kind("an object", lambda value: isinstance(value, dict))


def optional(kind: Kind) -> Kind:
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.accepts(value))


def list_of(kind: Kind) -> Kind:
    return Kind(f"a list of {kind.words}", lambda value: isinstance(value, list) and all(map(kind.accepts, value)))


def table_of(kind: Kind) -> Kind:
    return Kind(
        f"an object of {kind.words}", lambda value: isinstance(value, dict) and all(map(kind.accepts, value.values()))
    )


def one_of(*choices: Any) -> Kind:
    return Kind(f"one of {', '.join(map(repr, choices))}", lambda value: isinstance(value, str) and value in choices)


def require(found: Mapping[str, Any], key: str, kind: Kind, where: str) -> Any:
    """Return the value of a field. Raise UserError if it is missing or not of the kind."""
    if key not in found:
        raise UserError(f"{where}: {key} is missing; it should be {kind.words}")
    if not kind.accepts(found[key]):
        raise UserError(f"{where}: {key} should be {kind.words}, not {shorten(found[key])}")
    return found[key]


def check_fields(found: Mapping[str, Any], kinds: Mapping[str, Kind], where: str) -> None:
    """Raise UserError if an existing field has a value that it does not accept."""
    for key, kind in kinds.items():
        if key in found:
            require(found, key, kind, where)


def flatten_tables(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted field name, such as `phase2.steps`."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= flatten_tables(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def shorten(value: Any) -> str:
    """Format a value in at most 60 printable characters."""
    text = repr(value) if type(value) is not int or abs(value) < 10**40 else "a huge number"
    text = re.sub(r"\s+", " ", text).encode(errors="backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def refuse_surprises(where: object, advice: str = "") -> Iterator[None]:
    """Turn an exception from unexpected file contents into a UserError that names the file."""
    try:
        yield
    except UserError:
        raise
    except SURPRISES as error:
        message = f"{where} has unexpected contents ({type(error).__name__}: {shorten(str(error))})"
        raise UserError(f"{message}{f'; {advice}' if advice else ''}") from error
