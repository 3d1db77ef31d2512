"""How printed figures look, and how findings are kept: JSON first, then the same data as SVG and PNG."""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sjepa.analysis.names import LABELS
from sjepa.errors import UserError
from sjepa.fields import refuse_surprises
from sjepa.files import read_json, write_whole
from sjepa.progress import say

Found = dict[str, Any]
"""What an analysis found, as JSON holds it."""

# Okabe and Ito's colours, which colour-blind readers can tell apart; one colour keeps one meaning in all figures.
MASKED, VISIBLE, TARGET, PREDICTOR, PLAIN = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#0072B2"
WARNING, SKY = "#D55E00", "#56B4E9"
INK, MUTED, RULE, GRID, SHADE = "#1b1f24", "#667079", "#9aa3ab", "#e9ecef", "#f4f7fa"
RAMP = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151")  # viridis without its palest end

SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # a file may be called $x
    "svg.hashsalt": "sjepa",  # the same figure gives the same file
}


def ramp(steps: int) -> list[str]:
    """A colour for each step, dark to light."""
    stops = [tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in RAMP]
    colours = []
    for step in range(steps):
        place = step / max(1, steps - 1) * (len(stops) - 1)
        below = min(int(place), len(stops) - 2)
        mixed = [round(a + (place - below) * (b - a)) for a, b in zip(stops[below], stops[below + 1], strict=True)]
        colours.append("#" + "".join(f"{part:02x}" for part in mixed))
    return colours


FORMATS = ["svg", "png"]  # in which figures are written; `write_formats` changes it for a while


@contextmanager
def write_formats(*formats: str) -> Iterator[None]:
    """Write figures in these formats until the block ends."""
    before = FORMATS[:]
    FORMATS[:] = formats
    try:
        yield
    finally:
        FORMATS[:] = before


@contextmanager
def figure(width: float, height: float, stem: Path) -> Iterator[Any]:
    """An empty figure in inches, written when the block ends: as `stem.svg` and `stem.png`, unless others are asked
    for."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"drawing needs matplotlib: pip install 'sjepa[figures]'; {stem.name}.json is kept") from error
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # scripts that the font lacks are left out
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        stem.parent.mkdir(parents=True, exist_ok=True)
        for kind in FORMATS:  # without a date, so that the same figure gives the same file
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            drawn.savefig(f"{stem}.{kind}", dpi=200, metadata=metadata)


def keep(found: Found, out: Path, name: str, draw: Callable[[Found, Path], None] | None = None) -> Path:
    """Write `name.json` in a folder, and draw it where a way to draw is given."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    write_whole(path, json.dumps(found, allow_nan=False, ensure_ascii=False) + "\n")
    if draw is not None:
        draw(found, out / name)
    return path


def refuse_other(path: Path, made_from: dict[str, Any], force: bool) -> None:
    """Refuse to replace a result of other data or settings, before any work is done. Say so if it cannot be told."""
    if force or not path.is_file():
        return
    before = read_json(path).get("made_from")
    if before is None:
        say(f"{path} does not say what it was made from; it is replaced")
        return
    now = json.loads(json.dumps(made_from))
    differing = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    if differing:
        changes = "; ".join(f"{name} was {before.get(name)}, now {now.get(name)}" for name in differing)
        raise UserError(f"{path} was made from something else ({changes}): --force replaces it, --out keeps both")


def whole_path(place: str | Path) -> str:
    """A path from the root, so that two ways to name one folder compare equal; anything else as it is."""
    return str(Path(place).resolve()) if Path(place).exists() else str(place)


def load(path: Path) -> Found:
    """What an analysis wrote before."""
    if not path.is_file():
        raise UserError(f"there is no {path} to draw from: run the analysis without --redraw first")
    try:
        return read_found(path)
    except UserError as error:
        raise UserError(f"{error}; run the analysis again") from error


def read_found(path: Path) -> Found:
    """The JSON of an analysis. In older files the only path was the head at visible frames, called predictor."""
    found = read_json(path)
    if found.get("subject") == "utterance" and "predictor" in found:
        found["visible"] = found.pop("predictor")
    elif found.get("subject") == "entropy" and "predictor" in found.get("distributions", {}):
        curve = found["distributions"].pop("predictor") | {"label": LABELS["visible"]}
        found["distributions"] = {"visible": curve} | found["distributions"]
        joint = found["joint"]
        joint["path_above_1_bit"] = joint.pop("predictor_above_1_bit", None)
        joint["target_soft_where_path_is"] = joint.pop("target_soft_where_predictor_is", None)
        found["joint"] = {"visible": joint}
    return found


def redraw(path: Path, draw: Callable[[Found, Path], None]) -> None:
    """Draw what an analysis wrote before."""
    with refuse_surprises(path, "run the analysis again"):
        draw(load(path), path.with_suffix(""))


def file_name(name: str) -> str:
    """A name that every file system takes; letters of any script stay."""
    return re.sub(r"[^\w.-]+", "_", name)[-80:].strip("._") or "unnamed"
