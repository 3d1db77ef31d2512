"""Choosing a job by a word: `sjepa VERB ...`, and `sjepa bench SUBJECT ...` below it."""

from collections.abc import Mapping
from importlib import import_module

from sjepa.errors import UserError


def usage(program: str, kind: str, choices: Mapping[str, str]) -> str:
    listed = "\n".join(f"  {name:<10} {what}" for name, what in choices.items())
    word = f"{program} {kind.upper()}"
    return f"usage: {word} ...\n\n{listed}\n\n`{word} --help` explains every option."


def call(program: str, kind: str, choices: Mapping[str, str], package: str, arguments: list[str]) -> None:
    """Run the module of `package` that the first argument names, imported only now so that help is quick."""
    word = arguments[0] if arguments else "--help"
    if word in ("-h", "--help"):
        print(usage(program, kind, choices))
    elif word in choices:
        import_module(f"{package}.{word}").run(arguments[1:])
    else:
        from sjepa.config import suggestion

        raise UserError(f"there is no {kind} {word!r}{suggestion(word, choices)}; there are {', '.join(choices)}")
