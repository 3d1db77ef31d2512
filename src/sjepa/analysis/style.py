"""The style of printed figures, and how findings are saved: as JSON, then drawn from it as SVG and PNG."""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sjepa.errors import UserError
from sjepa.fields import refuse_surprises
from sjepa.files import atomic_file, dump_json, read_json, write_whole
from sjepa.progress import say

Findings = dict[str, Any]
"""The result of an analysis, as stored in JSON."""

# The colour-blind safe palette of Okabe and Ito. A colour has the same meaning in all figures.
MASKED, VISIBLE, TARGET, PREDICTOR, PLAIN = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#0072B2"
WARNING, SKY = "#D55E00", "#56B4E9"
INK, MUTED, RULE, GRID, SHADE = "#1b1f24", "#667079", "#9aa3ab", "#e9ecef", "#f4f7fa"
LONGEST_NAME = 80  # characters of the name of a file
MARKERS = "osD^vP*X"  # distinguish curves in greyscale prints
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
    "svg.hashsalt": "sjepa",  # equal figures are equal files
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


FORMATS = ["svg", "png"]  # file formats of figures; `write_formats` changes them temporarily


@contextmanager
def write_formats(*formats: str) -> Iterator[None]:
    """Write figures in these formats until the block ends."""
    before = FORMATS[:]
    FORMATS[:] = formats
    try:
        yield
    finally:
        FORMATS[:] = before


def require_matplotlib() -> None:
    """Raise UserError if figures cannot be drawn. Commands call this before their work."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UserError("drawing needs matplotlib: pip install 'sjepa[figures]'") from error


@contextmanager
def figure(width: float, height: float, stem: Path) -> Iterator[Any]:
    """Yield an empty figure of a size in inches, and save it when the block ends.

    The files are `stem.svg` and `stem.png` unless `write_formats` says otherwise.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font lacks some scripts
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        stem.parent.mkdir(parents=True, exist_ok=True)
        for kind in FORMATS:  # without a date, so that equal figures are equal files
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            with atomic_file(Path(f"{stem}.{kind}")) as partial:
                drawn.savefig(partial, format=kind, dpi=200, metadata=metadata)


UTTERANCE = "utterance-"  # files of utterances start with it
MADE_BY_REPORT = {"made_by": "report"}  # `sjepa analyze` may replace such findings


def findings_file(out: Path, name: str) -> Path:
    """The file with the findings of an analysis, or of one utterance."""
    return out / f"{name}.json"


def utterance_files(out: Path) -> list[Path]:
    """The findings of all utterances in a folder."""
    return sorted(out.glob(findings_file(Path(), f"{UTTERANCE}*").name))


def save_findings(found: Findings, out: Path, name: str, draw: Callable[[Findings, Path], None] | None = None) -> Path:
    """Write `name.json` to a folder, and draw it if `draw` is given."""
    out.mkdir(parents=True, exist_ok=True)
    path = findings_file(out, name)
    write_whole(path, dump_json(found, allow_nan=False) + "\n")
    if draw is not None:
        draw(found, out / name)
    return path


def refuse_replacing(path: Path, made_from: dict[str, Any], force: bool) -> None:
    """Refuse to replace findings made from other data or settings, before any work is done."""
    if force or not path.is_file():
        return
    found = read_json(path)
    before = found.get("made_from")
    if MADE_BY_REPORT.items() <= found.items():
        say(f"Replacing {path}, which `sjepa report` made")
        return
    if before is None:
        say(f"Replacing {path}, which does not record its data and settings")
        return
    now = json.loads(json.dumps(made_from))
    differing = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    if differing:
        changes = "; ".join(f"{name} was {before.get(name)}, now {now.get(name)}" for name in differing)
        raise UserError(
            f"{path} was made from other data or settings ({changes}): --force replaces it, --out keeps both"
        )


def absolute_path(place: str | Path) -> str:
    """Return the absolute path, so that two spellings of one folder compare equal. Keep anything that is not a path."""
    return str(Path(place).resolve()) if Path(place).exists() else str(place)


def load_findings(path: Path) -> Findings:
    """Load the saved findings of an analysis."""
    if not path.is_file():
        raise UserError(f"there is no {path} to draw from: run the analysis without --redraw first")
    try:
        return read_json(path)
    except UserError as error:
        raise UserError(f"{error}; run the analysis again") from error


def redraw(path: Path, draw: Callable[[Findings, Path], None]) -> None:
    """Draw the saved findings of an analysis again."""
    with refuse_surprises(path, "run the analysis again"):
        draw(load_findings(path), path.with_suffix(""))


def file_name(name: str) -> str:
    """Turn a name into one that every file system accepts. Letters of any script stay. A hash replaces a long start."""
    plain = re.sub(r"[^\w.-]+", "_", name)
    if len(plain) > LONGEST_NAME:
        plain = f"{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}-{plain[9 - LONGEST_NAME :]}"
    return plain.strip("._") or "unnamed"
