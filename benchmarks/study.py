"""The half-hour study's numbers: keep what its runs wrote, and make the tables of docs/study.md from what was kept.

python benchmarks/study.py collect runs/study     # runs/half-hour.sh made them -> benchmarks/results/study/*.json
python benchmarks/study.py tables                 # Markdown, from the JSON alone
python benchmarks/study.py trials                 # the attempts before it, likewise
python benchmarks/study_figures.py                # docs/study*.png, from the JSON alone
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sjepa.analysis.events import of_kind, read_events
from sjepa.config import flatten, load_preset, load_toml

KEPT = Path(__file__).parent / "results" / "study"
TRIALS = KEPT.parent / "study-trials.json"
CURVE = (
    "step", "phase", "loss", "kl_masked", "kl_visible", "accuracy_masked", "accuracy_visible", "target_entropy",
    "predictor_entropy", "target_perplexity", "dead_components", "active_layer", "decay",
)  # fmt: skip
POINTS = 100  # of a curve
Found = dict[str, Any]
"""What is kept of a run, or of features without one."""
Row = Callable[[Found], float | None]


def collect(out: Path) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        results = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("results/*/results.json")}
        found: Found = {"name": folder.name, "results": results}
        if (folder / "config.toml").is_file():
            found |= of_run(folder)
        if results or "curve" in found:
            (KEPT / f"{folder.name}.json").write_text(json.dumps(found, indent=1) + "\n")
            print(f"{folder.name}: {', '.join(results) or 'no results'}")


def of_run(run: Path) -> Found:
    """Settings that differ from the preset, curves and the clock of a run."""
    preset, config = flatten(load_preset("half-hour")), flatten(load_toml(run / "config.toml"))
    events = read_events(run)
    lines = of_kind(events, "train")
    entropy = run / "analysis" / "entropy.json"
    thin = max(1, len(lines) // POINTS)
    speed = [line["speed"] for line in lines]
    return {
        "settings": {name: value for name, value in config.items() if value != preset[name]},
        "facts": json.loads((run / "run.json").read_text()),
        "seconds": sum(s["seconds"] for s in speed),
        "audio_seconds": sum(s["seconds"] * s["audio_per_second"] for s in speed),
        "audio_per_second": {
            phase: statistics.median(line["speed"]["audio_per_second"] for line in lines if line["phase"] == phase)
            for phase in (1, 2)
            if any(line["phase"] == phase for line in lines)
        },
        "entropy": json.loads(entropy.read_text()) if entropy.is_file() else None,
        "curve": [{key: line.get(key) for key in CURVE} for line in lines[thin - 1 :: thin]],
        "ranks": [{key: e[key] for key in ("step", "phase", "ranks")} for e in of_kind(events, "layers")],
        "alarms": sum(bool(line["alarms"]) for line in lines),
    }


def probe(name: str) -> Row:
    def read(found: Found) -> float | None:
        layers = found["results"].get("probe", {}).get("layers", {})
        return list(layers.values())[-1].get(name, {}).get("mean") if layers else None

    return read


def result(task: str, *path: str) -> Row:
    def read(found: Found) -> float | None:
        value = found["results"].get(task)
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return read


def entropy(which: str) -> Row:
    return lambda found: ((found.get("entropy") or {}).get("distributions", {}).get(which) or {}).get("mean")


phones = probe("phoneme linear, held-out speakers")

TABLES: dict[str, dict[str, Row]] = {
    "Probes of the last layer, dev-clean, percent": {
        "phones, linear, held-out speakers": phones,
        "linear, random frames": probe("phoneme linear, random frames"),
        "MLP, held-out speakers": probe("phoneme mlp, held-out speakers"),
        "MLP, random frames": probe("phoneme mlp, random frames"),
        "speaker": probe("speaker"),
        "gender": probe("gender"),
        "chapter": probe("chapter"),
    },
    "Units, entropies in bits, and the clock": {
        "PNMI": result("units", "metrics", "pnmi"),
        "phone purity": result("units", "metrics", "phone_purity"),
        "target entropy": entropy("target"),
        "target entropy at temperature 1": entropy("plain"),
        "predictor entropy": entropy("predictor"),
        "GPU seconds": lambda found: found.get("seconds"),
        "audio s/s, phase 1": lambda found: found.get("audio_per_second", {}).get("1"),
        "audio s/s, phase 2": lambda found: found.get("audio_per_second", {}).get("2"),
    },
    "Heads on the frozen encoder, lite protocols": {
        "ASR-lite CER": result("asr", "metrics", "cer"),
        "ASR-lite WER": result("asr", "metrics", "wer"),
        "PR-lite PER": result("pr", "metrics", "per"),
        "RAVDESS emotion, accuracy": result("ravdess", "metrics", "accuracy"),
        "coffee orders, slot F1": result("coffee", "metrics", "slot_f1"),
    },
}


def systems() -> dict[str, list[Found]]:
    """What was kept, seeds of one name together."""
    found: dict[str, list[Found]] = {}
    for path in sorted(KEPT.glob("*.json")):
        kept = json.loads(path.read_text())
        stem, _, seed = kept["name"].rpartition("-")
        found.setdefault(stem if seed.isdigit() else kept["name"], []).append(kept)
    return found


def tables() -> None:
    kept = systems()
    for title, columns in TABLES.items():
        rows = {name: [cell(read, found) for read in columns.values()] for name, found in kept.items()}
        rows = {name: cells for name, cells in rows.items() if any(cells)}
        print(f"\n### {title}\n\n| | runs | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 2)}")
        for name, cells in rows.items():
            print(f"| {name} | {len(kept[name])} | {' | '.join(cell or '–' for cell in cells)} |")


def cell(read: Row, runs: list[Found]) -> str:
    """Mean over seeds, with the half range where there are several."""
    values = [value for found in runs if (value := read(found)) is not None]
    if not values:
        return ""
    mean, spread = statistics.mean(values), (max(values) - min(values)) / 2
    digits = 0 if mean >= 1000 else 1 if mean >= 10 else 2
    return f"{mean:,.{digits}f}" + (f" ± {spread:,.{digits}f}" if len(values) > 1 else "")


def trials() -> None:
    """What was tried before the study, in that order."""
    kept = json.loads(TRIALS.read_text())
    columns = ("after phase 1, last layer", "layer below", "at the end, last layer", "layer below")
    print(f"| | settings | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 2)}")
    for run in kept["all_frames"]["runs"] + kept["context"]["runs"]:
        probes = [run.get(when, {}) for when in ("probe after phase 1", "probe")]
        cells = [probe.get(state) for probe in probes for state in ("state 6", "state 5")]
        if any(cells):
            shown = " | ".join(f"{value + 1e-6:.1f}" if value else "–" for value in cells)  # halves up
            print(f"| {run['name'].removesuffix('-0')} | {run['what']} | {shown} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]))
    elif sys.argv[1:] == ["trials"]:
        trials()
    else:
        tables()
