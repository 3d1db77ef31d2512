"""A hook of mkdocs: the pages that are made from the code and from files outside this folder, at build time.

Commands, settings and the Python API are read from their dataclasses and docstrings, so these pages cannot differ from
the code. The home page is the README.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from importlib import import_module, resources
from pathlib import Path
from typing import Any
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
HEADER = "| option | type | default | |\n| --- | --- | --- | --- |\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of this folder."""
    pages = {
        "index.md": read_page("README.md"),
        "security.md": read_page("SECURITY.md"),
        "changelog.md": read_page("CHANGELOG.md"),
        "contributing.md": read_page("CONTRIBUTING.md"),
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/api.md": api_page(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files outside the site become the names of these files."""

    def name_file(link: re.Match[str]) -> str:
        return link[1] if link[2] in link[1] else f"{link[1]} (`{link[2]}`)"

    return re.sub(r"\[([^\]]+)\]\(\.\./(?!reference/)([^)]*)\)", name_file, markdown)


def read_page(name: str) -> str:
    """Read a page from the root of the repository, with its links as those of the site."""
    text = (ROOT / name).read_text("utf-8").replace("(docs/", "(")
    return re.sub(
        r"\[([^\]]+)\]\((CONTRIBUTING|SECURITY|CHANGELOG)\.md\)", lambda m: f"[{m[1]}]({m[2].lower()}.md)", text
    )


# ---------------------------------------------------------------- commands


class Options(BaseException):
    """Stands for the parsing of a command's options; carries their dataclass."""

    def __init__(self, command: type[Any]):
        self.command = command


def options_of(run: Callable[[list[str]], None], arguments: list[str]) -> type[Any]:
    """The dataclass of a command's options: what the command would parse its arguments with."""

    def stop(command: type[Any], **_: Any) -> None:
        raise Options(command)

    with mock.patch("tyro.cli", stop):
        try:
            run(arguments)
        except Options as found:
            return found.command
    raise AssertionError(f"{run.__module__} parses no options")


def all_commands() -> Iterator[tuple[str, str, type[Any]]]:
    """Each command's words, what it does in a line, and the dataclass of its options."""
    from sjepa.commands import COMMANDS

    for name, what in COMMANDS.items():
        module = import_module(f"sjepa.commands.{name}")
        subjects: dict[str, Any] = getattr(module, "SUBJECTS", {})
        for subject in subjects:
            command = options_of(module.run, [subject])
            yield f"{name} {subject}", first_line(command.__doc__), command
        if not subjects:
            yield name, what, options_of(module.run, [])


def commands_page() -> str:
    parts = ["# Commands\n\n`sjepa COMMAND --help` prints the same. Positional arguments are in capitals.\n"]
    for name, what, command in all_commands():
        about = paragraphs(command.__doc__)
        parts.append(f"## sjepa {name}\n\n{about or what}\n\n{HEADER}{option_rows(command)}")
    return "\n".join(parts)


def option_rows(command: type[Any]) -> str:
    rows, documented = [], field_docs(command)
    for field, kind, metadata in described_fields(command):
        if dataclasses.is_dataclass(kind):
            rows.append("| every [setting](settings.md) | | the preset's | such as `--phase2.k 500` |")
            continue
        positional = "Positional" in str(metadata)
        name = field.name.upper() if positional else "--" + field.name.replace("_", "-")
        rows.append(row(name, kind, field, documented.get(field.name, "")))
    return "\n".join(rows) + "\n"


def row(name: str, kind: Any, field: "dataclasses.Field[Any]", about: str) -> str:
    cells = [f"`{name}`", type_name(kind), default_of(field), escape(about)]
    return "| " + " | ".join(cells) + " |"


def described_fields(owner: type[Any]) -> Iterator[tuple["dataclasses.Field[Any]", Any, list[Any]]]:
    """The fields of a dataclass, each with its type, without and with what annotates it."""
    plain, full = typing.get_type_hints(owner), typing.get_type_hints(owner, include_extras=True)
    for field in dataclasses.fields(owner):
        yield field, plain[field.name], list(getattr(full[field.name], "__metadata__", ()))


def field_docs(owner: type[Any]) -> dict[str, str]:
    """The string below each field of a dataclass, inherited fields too."""
    found: dict[str, str] = {}
    for cls in reversed(owner.__mro__):
        if not dataclasses.is_dataclass(cls) or cls.__module__ == "types":
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError):  # made at run time: its bases have the strings
            continue
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(statement.target, ast.Name)
                found[statement.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return found


def type_name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(option) for option in arguments if option is not type(None)))
    if origin in (tuple, list):
        return f"{type_name(arguments[0])}, any number"
    return {"str": "text", "bool": "flag"}.get(name := getattr(kind, "__name__", str(kind)), name.lower())


def default_of(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if field.name == "workers":
        return "one per core"
    return "" if value in (None, "", ()) else f"`{value}`"


# ---------------------------------------------------------------- settings


def settings_page() -> str:
    """Every setting of a run by its section, and the presets as they are written."""
    from sjepa.config import Config, sections
    from sjepa.phases import PhaseConfig

    parts = [
        "# Settings\n\nEvery setting of a run, with the paper's defaults. Change one on the command line "
        "(`--phase2.k 1000`) or in a TOML file (`--preset mine.toml`). `sjepa config` prints all of them. "
        "All phases have the same fields; defaults are those of phase 1.\n"
    ]
    for name, section in sections(Config()).items():
        if isinstance(section, PhaseConfig) and name != "phase1":
            continue
        title = "Top level" if not name else "phase1, phase2, …" if name == "phase1" else name
        documented = field_docs(type(section))
        rows = [
            row(field.name, kind, field, documented.get(field.name, ""))
            for field, kind, _ in described_fields(type(section))
            if not dataclasses.is_dataclass(kind) and field.name != "phases"
        ]
        about = "" if not name else paragraphs(type(section).__doc__) + "\n\n"
        parts.append(f"## {title}\n\n{about}{HEADER.replace('option', 'field')}" + "\n".join(rows) + "\n")
    parts.append("## Presets\n")
    for file in sorted(resources.files("sjepa.presets").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            parts.append(f"### {file.name.removesuffix('.toml')}\n\n```toml\n{file.read_text('utf-8')}```\n")
    return "\n".join(parts)


# ---------------------------------------------------------------- Python


def api_page() -> str:
    """What `sjepa` exports: signatures and docstrings."""
    import sjepa

    parts = ["# Python API\n\nEverything on this page is public: `from sjepa import Encoder`.\n"]
    for name in sorted(sjepa.__all__):
        value = getattr(sjepa, name)
        if callable(value):
            call = "" if dataclasses.is_dataclass(value) else f"\n\n```python\n{name}{signature(value)}\n```"
            parts.append(f"## {name}{call}\n\n{paragraphs(value.__doc__)}\n")
            parts += members(value) if inspect.isclass(value) else []
    return "\n".join(parts)


def members(owner: type[Any]) -> list[str]:
    """The public methods and properties of a class, and those that it inherits from other classes of ours."""
    parts = []
    ours = [base for base in owner.__mro__ if base.__module__.startswith("sjepa.")]
    for name, member in {name: member for base in reversed(ours) for name, member in vars(base).items()}.items():
        function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(owner, name))
        if name.startswith("_") or not inspect.isroutine(function) or not function.__doc__:
            continue
        call = "" if isinstance(member, property) else f"\n\n```python\n{name}{signature(function)}\n```"
        parts.append(f"### {owner.__name__}.{name}{call}\n\n{paragraphs(function.__doc__)}\n")
    if dataclasses.is_dataclass(owner):
        documented = field_docs(owner)
        rows = [row(f.name, kind, f, documented.get(f.name, "")) for f, kind, _ in described_fields(owner)]
        parts.insert(0, HEADER.replace("option", "field") + "\n".join(rows) + "\n")
    return parts


def signature(function: Callable[..., Any]) -> str:
    try:
        return re.sub(r"(?:[a-z_]+\.)+([A-Z])", r"\1", str(inspect.signature(function)))
    except ValueError:
        return "(...)"


# ---------------------------------------------------------------- text


def first_line(text: str | None) -> str:
    return inspect.cleandoc(text or "").split("\n")[0]


def paragraphs(text: str | None) -> str:
    """A docstring as Markdown: examples become blocks of code."""
    blocks = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(f"```pycon\n{b}\n```" if b.lstrip().startswith(">>>") else b for b in blocks)


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
