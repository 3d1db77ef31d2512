"""Attacks by command lines: any option of any command, with values that fit and values that do not."""

import dataclasses
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from conftest import micro_config
from hostile_workspace import Attack
from hypothesis import strategies as st
from test_options import option_classes

from sjepa.config_options import add_config_options
from sjepa.subcommands import option

# Out of every bound, not a number, or so small that a run with it is short.
NUMBERS = st.sampled_from(
    [
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "1",
        "2",
        "3",
        "8",
        "0.5",
        "1.0",
        "1e-300",
        "1e300",
        "-1e300",
        str(2**63),
        "9" * 400,
        "9" * 5000,
        "0x10",
        "",
        " ",
        "1e",
        "--",
        "None",
        "１",
        "1,2",
    ]
)
PLACES_GIVEN = [
    "{corpus}",
    "{run}",
    "{index}",
    "{preset}",
    "{corpus}/0.wav",
    "{scratch}/none",
    "/dev/null",
    "",
    "\0",
    "a" * 300,
]
PATHS = st.sampled_from(PLACES_GIVEN) | st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=12).map(
    lambda text: "{scratch}/" + text.replace("/", "").replace("\0", "")
)
WORDS = st.one_of(
    st.text(max_size=10), st.sampled_from(["mfcc", "last", "all", "0", "-1", "99", "{run}", "{corpus}", "tiny"])
)
# Commands that work long, also on little: they always get a word too much, and are tried for their parsing alone.
LONG = (
    "demo",
    "bench step",
    "bench gmm",
    "bench encode",
    "bench data",
    "superb",
    "analyze erank",
    "report",
    "units",
    "probe",
)


def values_of(hint: Any) -> st.SearchStrategy[str]:
    """Words for an option of a type."""
    plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    text = str(plain)
    if "Literal" in text:
        choices = [str(choice) for part in (plain, *typing.get_args(plain)) for choice in typing.get_args(part)]
        return st.sampled_from([choice for choice in choices if choice.isidentifier()] or ["x"]) | WORDS
    if "int" in text or "float" in text:
        return NUMBERS
    return PATHS if "Path" in text else WORDS


def options_of(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Name, type and whether it is positional, of every option of a command."""
    for field in dataclasses.fields(kind):
        hint = typing.get_type_hints(kind, include_extras=True)[field.name]
        plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        if dataclasses.is_dataclass(plain):
            inner = prefix if field.name == "config" else f"{prefix}{field.name}."
            yield from options_of(typing.cast(type, plain), inner)
        else:
            positional = "Positional" in str(hint) or "_PositionalMarker" in str(getattr(hint, "__metadata__", ""))
            yield prefix + field.name.replace("_", "-"), hint, positional


@cache
def commands() -> dict[str, list[tuple[str, Any, bool]]]:
    """The options of every command, of `pretrain` and `config` with all settings."""
    found = {}
    for name, kind in option_classes().items():
        with_settings = add_config_options(kind, micro_config()) if name in ("pretrain", "config") else kind
        found[name] = list(options_of(with_settings))
    return found


NEEDED: dict[str, tuple[str, ...]] = {
    "pretrain": ("--preset", "{preset}", "--data", "{corpus}"),
    "config": ("--preset", "{preset}"),
    "embed": ("{corpus}/0.wav", "--encoder", "{run}"),
    "index": ("{corpus}",),
    "shard": ("{index}",),
    "plan": ("--hours", "10"),
    "export": ("{run}", "{scratch}/out", "--to", "hf"),
    "table": ("{run}",),
    "watch": ("{run}", "--once"),
    "analyze": ("{run}",),
}
WITH_OUT = ("pretrain", "embed", "index", "shard", "analyze", "table")


@st.composite
def command_attacks(draw: st.DrawFn) -> Attack:
    command = draw(st.sampled_from(list(commands())))
    first = command.split()[0]
    words = list(NEEDED.get(first, ())) if draw(st.integers(0, 4)) else []
    chosen = draw(st.lists(st.sampled_from(commands()[command]), max_size=4)) if commands()[command] else []
    for name, hint, positional in chosen:
        if name in ("out", "device", "folder"):
            continue
        value = draw(values_of(hint))
        words += (
            [value]
            if positional and draw(st.booleans())
            else [f"--{name}={value}"]
            if hint is not bool
            else [f"--{name}"]
        )
    if command in LONG or draw(st.integers(0, 9)) == 0:
        words.append(draw(st.sampled_from(["--no-such-option", "--out", "extra word", "--help", "--seed=-1", "--"])))
        if command in LONG:
            words.append("--no-such-option")
    if first in WITH_OUT:
        words += ["--out", "{scratch}/out"]
    if first == "watch":
        words.append("--once")
    # A preset or data that is large is no fault: such a command line is not tried.
    if first in ("pretrain", "demo") and option(words, "--preset") not in ("{preset}", ""):
        words.append("--no-such-option")
    return Attack("a command line", (*command.split(), *words))
