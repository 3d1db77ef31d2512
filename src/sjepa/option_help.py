"""Help texts of options, from the docstrings of their fields."""

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

NOTHING = ("None", "''", "")  # defaults that say nothing, as tyro writes them


def explain_options(command: type[Any]) -> None:
    """Give the fields of a command, and of the dataclasses inside it, a help text for tyro.

    From a docstring of several lines tyro would keep the line breaks. It would also show the default None, which
    commands use for an option that is not given. In settings inside a command, None can be a choice.
    """
    for kind in dataclasses_of(command):
        for owner in filter(is_dataclass, kind.__mro__):
            explain_fields(owner, not_given=issubclass(command, owner))


def dataclasses_of(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield a dataclass and those of its fields, at any depth."""
    yield kind
    hints = get_type_hints(kind)
    for each in fields(kind):
        if is_dataclass(inner := hints[each.name]) and isinstance(inner, type):
            yield from dataclasses_of(inner)


@cache
def explain_fields(owner: type[Any], not_given: bool) -> None:
    """Annotate the fields that a dataclass itself declares. With `not_given`, None stands for an option not given."""
    import docstring_parser
    import tyro

    try:
        found = docstring_parser.parse_from_object(owner).params
    except TypeError:  # a class that no file defines
        found = []
    texts = {each.arg_name: " ".join(each.description.split()) for each in found if each.description}
    annotations: dict[str, Any] = vars(owner).get("__annotations__", {})  # not those of its bases
    for name, hint in annotations.items():
        value = getattr(owner, name, ...)
        options: dict[str, Any] = {"help": texts[name]} if name in texts else {}
        if value in ("", ()) or (value is None and not_given):
            options["help_behavior_hint"] = show_default
        if value is None and not_given and (shown := name_of_optional(hint)):
            options["metavar"] = shown
        if value is ... and (shown := name_of_several(hint)):  # the commands refuse none at all
            options |= {"metavar": shown, "help_behavior_hint": "(required)"}
        if options:
            annotations[name] = Annotated[hint, tyro.conf.arg(**options)]


def show_default(default: str) -> str:
    return "" if default in NOTHING else f"(default: {default})"


def name_of_optional(hint: Any) -> str:
    """Return how help calls the value of an optional type: `Path | None` is PATH."""
    hint = without_annotation(hint)
    if not isinstance(hint, types.UnionType):
        return ""
    given = [each for each in get_args(hint) if each is not types.NoneType]
    return given[0].__name__.upper() if len(given) == 1 and isinstance(given[0], type) else ""


def name_of_several(hint: Any) -> str:
    """Return how help calls the values of a type of any number: `tuple[Path, ...]` is PATH [PATH ...]."""
    hint = without_annotation(hint)
    if get_origin(hint) not in (tuple, list):
        return ""
    name = get_args(hint)[0].__name__.upper()
    return f"{name} [{name} ...]"


def without_annotation(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
