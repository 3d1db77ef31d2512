"""Numbers of the Iban study: collect the results of recipes/iban.sh, and make the tables of docs/study-iban.md.

python benchmarks/iban.py runs/iban    # -> benchmarks/results/iban.json and iban-runs.json, and prints the tables
"""

import sys
from pathlib import Path
from typing import Any

from output import merge_entries, to_markdown

from sjepa.files import read_json
from sjepa.runs.events import audio_seconds, select_events
from sjepa.runs.folder import RunFolder

RESULTS = Path(__file__).parent / "results" / "iban.json"
RUNS = RESULTS.with_name("iban-runs.json")
AMOUNTS = {"all": "all transcripts", "60": "1 hour", "10": "10 minutes"}
ROWS = {
    "logmel": "log-mel",
    "english": "English",
    "no-dropout": "English, without dropout",
    "iban": "Iban",
    "continued": "English, continued on Iban",
    "continued-longer": "English, continued on Iban for longer",
    "continued-dropout": "English, continued on Iban for longer with more dropout",
    "continued-average": "mean of the weights of the last two",
    "english-shorter": "English, fewer steps",
    "continued-speed": "English, fewer steps, continued on Iban with changed speed",
    "both": "English and Iban",
    "both-continued": "English and Iban, continued on Iban",
    "english-compact": "English, compact (11.2M)",
    "iban-compact": "Iban, compact",
    "compact-continued": "English, compact, continued on Iban",
    "compact-continued-mfcc": "English, compact, continued on Iban, first with MFCC targets",
    "whisper-tiny": "*Whisper tiny.en (7.6M), trained with transcripts*",
}
SEEDS = {"60": "seed 0", "60-seed1": "seed 1", "60-seed2": "seed 2"}
KEPT = ("encoder", "metrics", "protocol", "data", "learning_rate", "versions")


def collect(out: Path) -> None:
    """Store the results of all encoders and amounts, as ENCODER-AMOUNT. Stored results of other encoders stay."""
    found = {path.parent.name: read_json(path) for path in sorted(out.glob("results/*/results.json"))}
    if not found:
        raise SystemExit(f"there are no results in {out}: run recipes/iban.sh first")
    merge_entries(RESULTS, {name: {key: results[key] for key in KEPT} for name, results in found.items()})
    runs = [run for run in map(RunFolder, sorted(out.iterdir())) if run.exists]
    merge_entries(RUNS, {run.path.name: summarize_run(run) for run in runs})


def summarize_run(run: RunFolder) -> dict[str, Any]:
    """Return the amount of training, and the accuracies at the end."""
    lines = select_events(run.events(), "train")
    last = lines[-1]
    return {
        "steps": last["step"],
        "audio_hours": round(audio_seconds(lines) / 3600, 1),
        "seconds": round(sum(line["speed"]["seconds"] for line in lines)),
        "accuracy_masked": round(last["accuracy_masked"], 4),
        "accuracy_visible": round(last["accuracy_visible"], 4),
    }


def load_rates(measure: str) -> dict[str, dict[str, float]]:
    """Return the error rates of each encoder in percent, by amount of transcripts."""
    kept: dict[str, Any] = read_json(RESULTS)
    rates = {
        row: {amount: kept[f"{row}-{amount}"]["metrics"][measure] for amount in AMOUNTS if f"{row}-{amount}" in kept}
        for row in ROWS
    }
    return {row: found for row, found in rates.items() if found}


def make_table() -> str:
    """Make the table of character error rates."""
    rows = [[ROWS[row], *(show(found.get(amount)) for amount in AMOUNTS)] for row, found in load_rates("cer").items()]
    return to_markdown(["pre-trained on", *AMOUNTS.values()], rows)


def make_details_table() -> str:
    """Make the table of character errors relative to log-mel's, and of word error rates."""
    cer, wer = load_rates("cer"), load_rates("wer")
    rows = []
    for row, found in cer.items():
        relative = [f"{found[amount] / cer['logmel'][amount]:.2f}" if amount in found else "" for amount in AMOUNTS]
        rows.append([ROWS[row], *relative, *(show(wer[row].get(amount)) for amount in AMOUNTS)])
    columns = [f"{measure}, {shown}" for measure in ("relative CER", "WER") for shown in AMOUNTS.values()]
    return to_markdown(["pre-trained on", *columns], rows)


def show(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}"


def make_seeds_table() -> str:
    """Make the table of character error rates with three selections of one hour of transcripts."""
    kept: dict[str, Any] = read_json(RESULTS)
    rates = {row: [kept.get(f"{row}-{amount}", {}).get("metrics", {}).get("cer") for amount in SEEDS] for row in ROWS}
    means = {row: sum(found) / len(found) for row, found in rates.items() if None not in found}
    rows = [
        [ROWS[row], *(f"{rate:.1f}" for rate in rates[row]), f"{mean:.2f}", f"{mean / means['logmel']:.3f}"]
        for row, mean in means.items()
    ]
    return to_markdown(["pre-trained on", *SEEDS.values(), "mean", "mean relative to log-mel"], rows)


def make_runs_table() -> str:
    """Make the table of how long the encoders were trained, and how often they are right in the end."""
    kept: dict[str, Any] = read_json(RUNS)
    rows = [
        [
            ROWS[row],
            f"{run['steps']:,}",
            f"{run['audio_hours']:,.0f}",
            f"{run['accuracy_masked']:.0%}",
            f"{run['accuracy_visible']:.0%}",
        ]
        for row, run in ((row, kept[row]) for row in ROWS if row in kept)
    ]
    columns = ["steps", "hours of audio", "accuracy, masked frames", "visible frames"]
    return to_markdown(["pre-trained on", *columns], rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    collect(Path(sys.argv[1]))
    print(make_table(), make_details_table(), make_seeds_table(), make_runs_table(), sep="\n\n")
