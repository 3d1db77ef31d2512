"""Select a command by its first argument: `sjepa COMMAND ...`, and `sjepa bench SUBJECT ...` below it."""

from collections.abc import Mapping
from importlib import import_module
from itertools import zip_longest
from typing import Any

from sjepa.bounds import check_options
from sjepa.errors import UserError, suggestion
from sjepa.option_help import explain_options


def usage(program: str, kind: str, choices: Mapping[str, str], note: str = "") -> str:
    listed = "\n".join(f"  {name:<10} {what}" for name, what in choices.items())
    word = f"{program} {kind.upper()}"
    return f"usage: {word} ...\n\n{listed}\n\n`{word} --help` explains every option." + (f"\n{note}" if note else "")


def choose(program: str, kind: str, choices: Mapping[str, str], arguments: list[str], note: str = "") -> str | None:
    """Return the choice that the first argument names. If it asks for help, print it with a note and return None."""
    word = arguments[0] if arguments else "--help"
    if word in ("-h", "--help", "help"):
        print(usage(program, kind, choices, note))
        return None
    if word in choices:
        return word
    raise UserError(f"there is no {kind} {word!r}{suggestion(word, choices)}; there are {', '.join(choices)}")


def parse(command: type[Any], program: str, arguments: list[str]) -> Any:
    """Parse the options of a command and check the bounds that their fields declare."""
    import tyro

    explain_options(command)
    parsed = tyro.cli(command, prog=program, args=arguments)
    check_options(parsed)
    return parsed


def option(arguments: list[str], name: str) -> str:
    """Return the value of an option before the options are parsed, or an empty string."""
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        given, equals, value = argument.partition("=")
        if given.replace("_", "-") == name:  # tyro accepts both spellings
            return value if equals else following
    return ""


def call(
    program: str, kind: str, choices: Mapping[str, str], package: str, arguments: list[str], note: str = ""
) -> None:
    """Run the module of `package` that the first argument names. It is imported only now, to keep help fast."""
    word = choose(program, kind, choices, arguments, note)
    if word is not None:
        import_module(f"{package}.{word}").run(arguments[1:])
