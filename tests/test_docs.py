"""The documentation: the site builds, code on its pages runs, commands on its pages parse."""

import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
from conftest import babble

import sjepa.data.layouts
from sjepa import cli, subcommands
from sjepa.config import Config
from sjepa.data.build import build_index
from sjepa.evaluate.superb.tasks import find_entry, make_task
from sjepa.evaluate.upstream import load_upstream
from sjepa.export.card import CITATION
from sjepa.runs.folder import RunFolder
from sjepa.targets import kinds
from sjepa.targets.kinds import KINDS
from sjepa.train.loop import pretrain

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN_IN = {page.name: page.read_text(encoding="utf-8") for page in PAGES}


def example(title: str) -> str:
    """The block of docs/extending.md for a file of the package."""
    found = re.search(
        rf'^```python title="src/sjepa/{re.escape(title)}"\n(.*?)^```', WRITTEN_IN["extending.md"], re.M | re.S
    )
    assert found is not None, title
    return found[1]


def add_module(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a module of some source importable under a name."""
    module = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)


def test_the_site_builds_without_a_warning_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    build, load = pytest.importorskip("mkdocs.commands.build").build, pytest.importorskip("mkdocs.config").load_config
    pytest.importorskip("material")
    build(load(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    commands = (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in cli.COMMANDS:
        assert f"sjepa {name}" in commands
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|iframe|link[^>]*rel="stylesheet")[^>]*?(?:src|href)="([^"]+)"', page.read_text()
        )
        assert loaded
        assert not [place for place in loaded if place.startswith(("http", "//"))]


def test_the_readme_is_short() -> None:
    assert len(WRITTEN_IN["README.md"].splitlines()) <= 120


def test_the_code_on_the_page_of_the_method_is_that_of_the_file() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", WRITTEN_IN["method.md"], re.MULTILINE | re.DOTALL)
    minimal = without_indents((ROOT / "examples" / "minimal.py").read_text(encoding="utf-8"))
    assert len(blocks) > 8
    for block in blocks:
        assert without_indents(block) in minimal


def test_the_page_of_the_method_and_model_cards_cite_the_paper_alike() -> None:
    assert f"```bibtex\n{CITATION}\n```" in WRITTEN_IN["method.md"]


def without_indents(code: str) -> str:
    return "\n".join(line.strip() for line in code.splitlines())


def test_git_ignores_what_the_commands_of_the_first_pages_write() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git clone")
    pages = "\n".join(WRITTEN_IN[name] for name in ("README.md", "quickstart.md", "cookbook.md"))
    written = re.findall(r"^ {4}.*(?:--out|--to hf|examples/ctc_finetune\.py \S+ \S+) (\S+)", pages, re.MULTILINE)
    written += re.findall(r"^ {4}python examples/units_for_lm\.py \S+ (\S+)", pages, re.MULTILINE)
    assert {"features", "models/encoder", "models/asr", "units", "units.txt"} <= set(written)
    inside = [f"{path}/x" for path in written]  # a pattern of a folder matches what is in it
    found = subprocess.run(["git", "-C", ROOT, "check-ignore", *inside], capture_output=True, text=True)
    assert sorted(set(inside) - set(found.stdout.splitlines())) == []


class Parsed(BaseException):
    """The options of a command were understood; it does not start."""


def command_lines() -> list[tuple[str, str]]:
    """Every command in an indented block of a page, once; those of docs/extending.md are of what it adds."""
    found: dict[str, str] = {}
    for name, text in WRITTEN_IN.items():
        for line in re.sub(r" *\\\n *", " ", text).splitlines():
            command = re.fullmatch(r" {4}(?:torchrun .* -m )?(sjepa [a-z][^#>]*?)(?: *[#>].*)?", line)
            if command and name != "extending.md" and "..." not in line and "…" not in line:
                found.setdefault(command[1], name)
    return [(page, line) for line, page in found.items()]


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_command_on_a_page_parses(page: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(options: Any) -> None:
        raise Parsed

    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('extends = "half-hour"\n')  # the file that docs/runs.md describes
    monkeypatch.setattr(subcommands, "check_options", stop)
    monkeypatch.setattr(sys, "exit", lambda code: pytest.fail(f"{page}: {line}"))
    words = shlex.split(line)[1:]
    with pytest.raises(Parsed):
        cli.dispatch(words)


def test_the_kind_of_target_on_the_page_trains(
    micro: Callable[..., Config], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sjepa.targets.kinds.KINDS", KINDS)
    before = dict(KINDS)
    names = dict(vars(kinds))
    try:
        exec(example("targets/kinds.py"), names)
        KINDS.update(eval("{" + example("targets/kinds.py, in KINDS") + "}", names))
        config = micro(phase1={"targets": "logmel-gmm", "steps": 2}, phase2={"targets": "same", "steps": 1})
        assert pretrain(config, corpus, tmp_path / "run", show=False)
    finally:
        KINDS.clear()
        KINDS.update(before)
    assert RunFolder(tmp_path / "run").step == 3


def test_the_task_on_the_page_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(8):
        path = tmp_path / ("north", "south")[index % 2] / f"speaker{index // 2}-{index % 2}" / f"{index}.wav"
        path.parent.mkdir(parents=True)
        soundfile.write(path, babble(0.4, index), 16_000)
    add_module("sjepa.evaluate.superb.tasks.accent", example("evaluate/superb/tasks/accent.py"), monkeypatch)
    task = make_task("accent", tmp_path, lite=True, steps=2)
    results = find_entry("accent").search(task, load_upstream("logmel", "cpu"), tmp_path / "out").run([1e-3])
    assert results["task"] == "accent"
    assert 0 <= results["metrics"]["accuracy"] <= 100


def test_the_layout_on_the_page_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "audio"
    (folder / "amy").mkdir(parents=True)
    (folder / "speaker-info.txt").write_text("amy F")
    for name in ("one", "two"):
        soundfile.write(folder / "amy" / f"{name}.wav", babble(0.5, 0), 16_000)
    (folder / "amy" / "one.txt").write_text("Hello.\n")
    add_module("sjepa.data.layouts.transcribed", example("data/layouts/transcribed.py"), monkeypatch)
    monkeypatch.setattr(sjepa.data.layouts, "LAYOUTS", ("transcribed", *sjepa.data.layouts.LAYOUTS))
    facts = build_index([str(folder)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    assert (facts["utterances"], facts["refused"]) == (1, 1)
    assert (facts["speakers"], facts["transcripts"]) == (1, 1)


def test_the_command_on_the_page_runs(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_module("sjepa.commands.duration", example("commands/duration.py"), monkeypatch)
    line = eval("{" + example("commands/__init__.py, in COMMANDS") + "}")
    monkeypatch.setattr(cli, "COMMANDS", cli.COMMANDS | line)
    cli.dispatch(["duration", str(corpus)])
    assert capsys.readouterr().out.endswith("0.0043 hours in 12 pieces\n")
