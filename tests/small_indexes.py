"""Write audio, index it, and read what the index holds and what it refused."""

from pathlib import Path
from typing import Any

import soundfile
from conftest import babble

from sjepa.data.build import build_index
from sjepa.data.index import read_labels
from sjepa.data.layouts import Layout


def index(
    *sources: Path, out: Path, layout: Layout = "auto", seconds: float = 15.0, cut: bool = False
) -> dict[str, Any]:
    names = [str(source) for source in sources]
    return build_index(names, out, layout=layout, max_seconds=seconds, cut_transcribed=cut)


def refused(folder: Path) -> str:
    return (folder / "refused.txt").read_text()


def labels(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = read_labels(str(folder)).to_pylist()
    return rows


def write(path: Path, seconds: float = 1.5, seed: int = 0, rate: int = 16_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, babble(seconds, seed), rate)
    return path
