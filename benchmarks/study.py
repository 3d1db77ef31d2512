"""Numbers of the studies: collect the results of their runs, and make the tables of their pages.

python benchmarks/study.py collect study runs/study   # runs of recipes/study.sh -> benchmarks/results/study/*.json
python benchmarks/study.py tables                     # update the tables of docs/study*.md
python benchmarks/study_figures.py                    # draw docs/study*.png
"""

import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import iban
import layer_measures
import unit_limits
from output import to_markdown, write_entries

from sjepa.config import flatten
from sjepa.evaluate.probe_names import ProbeName
from sjepa.files import read_json, read_text, write_whole
from sjepa.runs.events import audio_seconds, select_events
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import load_preset

ROOT = Path(__file__).parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
CURVE = (
    "step", "phase", "loss", "kl_masked", "kl_visible", "accuracy_masked", "accuracy_visible", "target_entropy",
    "predictor_entropy", "target_perplexity", "dead_components", "active_layer", "decay",
)  # fmt: skip
FACTS = ("corpus", "sjepa", "torch", "python", "world_size")
POINTS = 100  # points per curve
MARKS = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)  # a table in a page


@dataclass(frozen=True)
class Study:
    """A study. Its name is that of its recipe, its page and its results."""

    name: str
    preset: str
    order: tuple[str, ...]
    """Order of the systems in tables."""
    pairs: tuple[tuple[str, str], ...]
    """Systems that are compared seed by seed."""

    @property
    def results(self) -> Path:
        return RESULTS / self.name


STUDIES = {
    study.name: study
    for study in (
        Study(
            "study",
            "half-hour",
            (
                "headline", "no-dropout", "no-dropout-short", "english-compact", "headline.phase1", "whisper-tiny",
                "mfcc+context", "mfcc", "logmel", "untrained",
            ),
            (("headline", "no-dropout"), ("no-dropout", "no-dropout-short"), ("headline", "headline.phase1")),
        ),
        Study(
            "study-ablations",
            "compact",
            (
                "soft", "soft-16", "hard-16", "soft-all", "hard-all", "frozen", "long-soft", "long-hard",
                "long-soft-16", "long-hard-16", "long-frozen", "fixed-decay", "linear-decay", "cosine-decay",
                "rank-layer", "first-layer", "middle-layer", "last-layer", "visible", "augmented",
                "visible-augmented", "paper", "paper-centred", "paper-fixed-layer", "paper-masks",
                "paper-attention-start", "paper-both-paths", "paper-muon", "paper-no-dropout", "soft.phase1",
                "paper.phase1",
            ),
            (
                ("soft-16", "hard-16"), ("soft-all", "hard-all"), ("soft-16", "soft"), ("soft-all", "soft"),
                ("soft", "frozen"), ("soft", "soft.phase1"), ("frozen", "soft.phase1"), ("long-soft", "long-hard"),
                ("long-soft-16", "long-hard-16"), ("long-soft-16", "long-soft"), ("long-soft", "long-frozen"),
                ("fixed-decay", "soft"), ("linear-decay", "soft"), ("cosine-decay", "soft"), ("rank-layer", "soft"),
                ("first-layer", "soft"), ("middle-layer", "soft"), ("last-layer", "soft"), ("visible", "soft"),
                ("augmented", "soft"), ("visible-augmented", "soft"), ("paper-centred", "paper"),
                ("paper-fixed-layer", "paper"), ("paper-masks", "paper"), ("paper-attention-start", "paper"),
                ("paper-both-paths", "paper"), ("paper-muon", "paper"), ("paper-no-dropout", "paper"),
            ),
        ),
        Study(
            "study-adamw",
            str(ROOT / "recipes" / "half-hour-adamw.toml"),
            (
                "headline", "soft", "softened", "hard", "hubert", "frozen", "best-rq", "fixed-layer",
                "hard-fixed-layer", "last-layer", "fixed-decay", "papers-decays", "masked-only", "long", "frozen-long",
                "regularised", "headline.phase1", "soft.phase1", "hard.phase1", "hubert.phase1", "mfcc+context", "mfcc",
                "logmel", "untrained",
            ),
            (
                ("soft", "hard"), ("fixed-layer", "hard-fixed-layer"), ("soft.phase1", "hard.phase1"),
                ("softened", "soft"), ("soft", "hubert"), ("hard", "hubert"), ("fixed-layer", "hubert"),
                ("hard-fixed-layer", "hubert"), ("soft.phase1", "hubert.phase1"), ("hard.phase1", "hubert.phase1"),
                ("soft", "best-rq"), ("soft", "soft.phase1"), ("fixed-layer", "soft.phase1"), ("frozen", "soft.phase1"),
                ("hard", "hard.phase1"), ("hard-fixed-layer", "hard.phase1"), ("hubert", "hubert.phase1"),
                ("long", "soft.phase1"), ("frozen-long", "soft.phase1"), ("headline", "headline.phase1"),
                ("soft", "frozen"), ("fixed-layer", "frozen"), ("long", "frozen-long"), ("regularised", "long"),
                ("fixed-layer", "soft"), ("last-layer", "soft"), ("fixed-decay", "soft"), ("papers-decays", "soft"),
                ("masked-only", "soft"),
            ),
        ),
    )
}  # fmt: skip
Found = dict[str, Any]
"""Collected results of a run, or of features without one."""
Row = Callable[[Found], float | None]


def collect(study: Study, out: Path) -> None:
    if not out.is_dir():
        raise SystemExit(f"there is no {out}: run recipes/study.sh first")
    check_same_audio(study, out)
    study.results.mkdir(exist_ok=True)
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        results = {path.parent.name: read_json(path) for path in folder.glob("results/*/results.json")}
        found: Found = {"name": folder.name, "results": results}
        if RunFolder(folder).exists:
            found |= summarize_run(RunFolder(folder), study.preset)
        if results or "curve" in found:
            found = keep_stored(study.results / f"{folder.name}.json", found)
            write_entries(study.results / f"{folder.name}.json", found)
            print(f"{folder.name}: {', '.join(found['results']) or 'no results'}")


def keep_stored(path: Path, found: Found) -> Found:
    """Add what is stored and was not measured again. Leave out results of an encoder with other weights."""
    stored = read_json(path) if path.is_file() else {"results": {}}
    weights = {fingerprint(result) for result in found["results"].values()}
    kept = {name: result for name, result in stored["results"].items() if fingerprint(result) in weights}
    if lost := sorted(stored["results"].keys() - kept.keys() - found["results"].keys()):
        print(f"{found['name']}: not the stored weights, so these results are left out: {', '.join(lost)}")
    return (stored if kept else {}) | found | {"results": kept | found["results"]}


def fingerprint(result: Found) -> str:
    """Return the hash of the weights of the encoder that a result belongs to."""
    return str(result["encoder"]["fingerprint"])


def check_same_audio(study: Study, out: Path) -> None:
    """Exit if runs used different audio. Seeds are averaged, so all must use the same."""
    corpora = {read_json(path).get("facts", {}).get("corpus"): path for path in study.results.glob("*.json")}
    for run in map(RunFolder, sorted(out.iterdir())):
        corpora.setdefault(run.facts.get("corpus"), run.facts_file)
    corpora.pop(None, None)
    if len(corpora) > 1:
        raise SystemExit(
            f"not the same audio: {', '.join(map(str, corpora.values()))}; move the older results elsewhere"
        )


def summarize_run(run: RunFolder, preset_name: str) -> Found:
    """Return settings that differ from the preset, curves and timings of a run."""
    preset, config = flatten(load_preset(preset_name)), flatten(run.config())
    events = run.events()
    lines = select_events(events, "train")
    entropy = run.analysis / "entropy.json"
    kept = read_json(entropy) if entropy.is_file() else None
    thin = max(1, len(lines) // POINTS)
    speed: dict[int, list[Found]] = {}
    for line in lines:
        speed.setdefault(line["phase"], []).append(line["speed"])
    return {
        "settings": {name: hide_folders(value) for name, value in config.items() if value != preset[name]},
        "facts": {key: value for key, value in run.facts.items() if key in FACTS},
        "seconds": sum(line["speed"]["seconds"] for line in lines),
        "audio_seconds": round(audio_seconds(events)),
        "audio_per_second": {
            phase: statistics.median(part["audio_per_second"] for part in parts) for phase, parts in speed.items()
        },
        "memory_gib": {phase: max(part["memory_gb"] for part in parts) for phase, parts in speed.items()},
        "entropy": {key: kept[key] for key in ("distributions", "edges", "marks")} if kept else None,
        "curve": [{key: round_value(line.get(key)) for key in CURVE} for line in lines[thin - 1 :: thin]],
        "ranks": [
            {"step": e["step"], "ranks": [round_value(rank) for rank in e["effective_ranks"]]}
            for e in select_events(events, "layers")
        ],
        "alarms": sum(bool(line["alarms"]) for line in lines),
    }


def hide_folders(value: Any) -> Any:
    """Keep only the last part of a path: the folders above it say nothing about the run."""
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def round_value(value: float | None) -> float | None:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read_probe(name: ProbeName) -> Row:
    def read(found: Found) -> float | None:
        layers = found["results"].get("probe", {}).get("layers", {})
        return list(layers.values())[-1].get(name, {}).get("mean") if layers else None

    return read


def read_result(task: str, *path: str) -> Row:
    def read(found: Found) -> float | None:
        value = found["results"].get(task)
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return read


def read_end(name: str) -> Row:
    """Average a training metric over the last points of the curve."""
    return lambda found: statistics.mean(point[name] for point in found["curve"][-5:]) if "curve" in found else None


def read_entropy(which: str) -> Row:
    """Read the mean entropy of whole utterances at the end."""
    return lambda found: ((found.get("entropy") or {}).get("distributions", {}).get(which) or {}).get("mean")


def read_rate(phase: int) -> Row:
    return lambda found: found.get("audio_per_second", {}).get(str(phase))


phones = read_probe(ProbeName.PHONE_LINEAR_HELD_OUT)

TABLES: dict[str, dict[str, Row]] = {
    "probes": {
        "phones, linear, held-out speakers": phones,
        "linear, random frames": read_probe(ProbeName.PHONE_LINEAR_RANDOM),
        "MLP, held-out speakers": read_probe(ProbeName.PHONE_MLP_HELD_OUT),
        "MLP, random frames": read_probe(ProbeName.PHONE_MLP_RANDOM),
        "speaker": read_probe(ProbeName.SPEAKER),
        "gender": read_probe(ProbeName.GENDER),
        "chapter": read_probe(ProbeName.CHAPTER),
    },
    "units": {
        "PNMI": read_result("units", "metrics", "pnmi"),
        "phone purity": read_result("units", "metrics", "phone_purity"),
        "entropy of the target": read_end("target_entropy"),
        "entropy of the posterior behind it, temperature 1": read_entropy("plain"),
        "entropy of the predictor, masked frames": read_end("predictor_entropy"),
        "entropy of the head, nothing masked": read_entropy("visible"),
    },
    "cost": {
        "hours of audio": lambda found: found["audio_seconds"] / 3600 if "curve" in found else None,
        "minutes in steps": lambda found: found["seconds"] / 60 if "curve" in found else None,
        "audio s/s, phase 1": read_rate(1),
        "audio s/s, phase 2": read_rate(2),
    },
    "heads": {
        "ASR-lite CER": read_result("asr", "metrics", "cer"),
        "ASR-lite WER": read_result("asr", "metrics", "wer"),
        "PR-lite PER": read_result("pr", "metrics", "per"),
        "RAVDESS emotion, accuracy": read_result("ravdess", "metrics", "accuracy"),
        "coffee orders, slot F1": read_result("coffee", "metrics", "slot_f1"),
    },
}


def load_systems(study: Study) -> dict[str, list[Found]]:
    """Load all collected results of a study, with the seeds of a system grouped."""
    found: dict[str, list[Found]] = {}
    for path in sorted(study.results.glob("*.json")):
        kept = read_json(path)
        found.setdefault(parse_seed(kept)[0], []).append(kept)
    order = study.order
    return {name: found[name] for name in sorted(found, key=lambda n: order.index(n) if n in order else len(order))}


def parse_seed(found: Found) -> tuple[str, int | None]:
    stem, _, seed = found["name"].rpartition("-")
    return (stem, int(seed)) if seed.isdigit() else (found["name"], None)


def make_tables(study: Study) -> dict[str, str]:
    """Make all tables of a study in Markdown, by name."""
    kept = load_systems(study)
    made = {}
    for name, columns in TABLES.items():
        cells = {title: [format_cell(read, found) for found in kept.values()] for title, read in columns.items()}
        cells = {title: column for title, column in cells.items() if any(column)}
        rows = zip(kept, *cells.values(), strict=True)
        made[name] = to_markdown(["", *cells], [row for row in rows if any(row[1:])])
    return made | {"differences": compare_pairs(kept, study.pairs)}


def fill_tables(name: str, page: str) -> str:
    """Replace the tables between the marks of a page, by the name of the page."""
    made = make_tables(STUDIES[name]) if name in STUDIES else {}
    if name == "study-iban":
        made |= {"cer": iban.make_table(), "details": iban.make_details_table()}
        made |= {"seeds": iban.make_seeds_table(), "runs": iban.make_runs_table()}
    if name == "study-trials":
        made |= {"trials": make_trials_table(), "limits": unit_limits.make_table()}
        made |= {"layers": layer_measures.make_table()}
    return MARKS.sub(lambda mark: f"{mark[1]}\n{made[mark[2]]}\n\n{mark[3]}", page)


def compare_pairs(kept: dict[str, list[Found]], compared: Sequence[tuple[str, str]]) -> str:
    """Compare pairs of systems by seed: same initial weights, batches and probe splits."""
    columns = {"linear": phones, "MLP": read_probe(ProbeName.PHONE_MLP_HELD_OUT)}
    rows = []
    for one, other in compared:
        pairs = [(a, b) for a in kept.get(one, []) for b in kept.get(other, []) if parse_seed(a)[1] == parse_seed(b)[1]]
        values = [[(read(a), read(b)) for a, b in pairs] for read in columns.values()]
        cells = [
            ", ".join(format_number(x - y, sign="+") for x, y in pair if x is not None and y is not None)
            for pair in values
        ]
        if any(cells):
            rows.append([f"{one} − {other}", *cells])
    return to_markdown(["", *columns], rows)


def format_cell(read: Row, runs: list[Found]) -> str:
    """Format the mean over seeds, with half their range if there are several."""
    values = [value for found in runs if (value := read(found)) is not None]
    if not values:
        return ""
    mean, spread = statistics.mean(values), (max(values) - min(values)) / 2
    digits = 0 if mean >= 1000 else 1 if mean >= 10 else 2
    return format_number(mean, digits) + (f" ± {format_number(spread, digits)}" if len(values) > 1 else "")


def format_number(value: float, digits: int = 1, sign: str = "") -> str:
    """Round half up, ignoring floating-point error."""
    exact = Decimal(f"{value:.6f}").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{exact + 0:{sign},}"  # without a negative zero


def make_trials_table() -> str:
    """Make the table of trials before the study, in order."""
    kept = read_json(RESULTS / "study-trials.json")
    columns = ("", "settings", "after phase 1, last layer", "layer below", "at the end, last layer", "layer below")
    rows = []
    for run in kept["all_frames"]["runs"] + kept["context"]["runs"]:
        probes = [run.get(when, {}) for when in ("probe after phase 1", "probe")]
        values = [probe.get(state) for probe in probes for state in ("state 6", "state 5")]
        if any(values):
            cells = [format_number(value) if value else "" for value in values]
            rows.append([run["name"].removesuffix("-0"), run["what"], *cells])
    return to_markdown(columns, rows)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["collect", name, out] if name in STUDIES:
            collect(STUDIES[name], Path(out))
        case ["tables"]:
            for page in sorted(DOCS.glob("study*.md")):
                write_whole(page, fill_tables(page.stem, read_text(page)))
                print(f"{page}: updated its tables")
        case _:
            raise SystemExit(__doc__)
