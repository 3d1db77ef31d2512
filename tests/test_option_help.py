"""The help of every option: its docstring as flowing text, and only defaults that say something."""

import itertools

from calls import sjepa


def read_lines(*words: str) -> list[str]:
    """Return the lines of help from the first option on, without indents and boxes."""
    lines = [line.strip("│ ") for line in sjepa(*words, "--help").printed.splitlines()]
    return lines[lines.index("options") + 1 :]


def read_help(*words: str) -> dict[str, str]:
    """Return the help text of each option, its lines joined."""
    texts: dict[str, str] = {}
    name = ""
    for line in read_lines(*words):
        if line.startswith("--"):
            name = line.split(maxsplit=1)[0].rstrip(",")
        texts[name] = f"{texts.get(name, '')} {line}".strip()
    return texts


def test_lines_of_help_are_full() -> None:
    """A line ends where the next word does not fit, not where a line of the docstring ended."""
    lines = [line for line in read_lines("pretrain") if line and not line.startswith("-")]
    width = max(map(len, lines)) - 6  # texts of options are indented
    broken = [
        line
        for line, following in itertools.pairwise(lines)
        if line[-1] not in ".)"
        and following[0].islower()
        and not following.endswith(" options")
        and len(f"{line} {following.split()[0]}") < width - 2
    ]
    assert len(lines) > 150
    assert not broken


def test_an_option_that_was_not_given_has_no_default() -> None:
    texts = read_help("probe")
    assert texts["--step"].startswith("--step INT ")
    assert texts["--out"].startswith("--out PATH ")
    assert not [name for name, text in texts.items() if "None" in text]
    assert texts["--seed"].endswith("(default: 0)")
    assert texts["--data"].endswith("(required)")


def test_a_setting_that_can_be_none_says_so() -> None:
    assert "{None}|INT" in read_help("pretrain")["--layer.choice"]
    assert read_help("pretrain")["--layer.choice"].endswith("(default: None)")


def test_arguments_of_any_number_say_that_one_is_required() -> None:
    for command, value in (("embed", "PATH"), ("index", "STR"), ("report", "PATH"), ("table", "PATH")):
        printed = " ".join(sjepa(command, "--help").printed.split())
        assert f"{value} [{value} ...] " in printed
        assert "(default: )" not in printed
    assert "(default: runs)" in sjepa("runs", "--help").printed


def test_empty_text_is_not_shown_as_a_default() -> None:
    assert "default" not in read_help("config")["--init-from"]
