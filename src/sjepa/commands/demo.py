"""`sjepa demo`: run the whole pipeline on a small synthetic corpus."""

from dataclasses import dataclass
from pathlib import Path

from sjepa.stopping import INTERRUPTED
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Demo:
    """Run the whole pipeline in a few minutes: synthetic speech, both phases of the tiny preset, probes, a page."""

    out: Path = Path("runs/demo")
    """Folder for the corpus, the run and the page."""


def run(arguments: list[str]) -> None:
    command = parse(Demo, "sjepa demo", arguments)
    from sjepa.demo import demo
    from sjepa.locks import lock_folder

    with lock_folder(command.out):
        complete = demo(command.out)
    if not complete:
        raise SystemExit(INTERRUPTED)
