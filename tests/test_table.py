"""The table of many results: sizes counted, the best in bold, reported rows marked, lite apart."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sjepa.errors import UserError
from sjepa.evaluate.table import FULL, LITE, as_csv, build_sections, find_results, latex, markdown


def result(
    name: str, task: str, metrics: dict[str, float], parameters: int = 51_843_712, **more: Any
) -> dict[str, Any]:
    protocol = {"name": "full", "steps": 200_000}
    return {
        "task": task,
        "protocol": protocol,
        "encoder": {"name": name, "parameters": parameters, "fingerprint": name, "states": 7},
        "metrics": metrics,
        "decoded": {},
    } | more


LITE_PROTOCOL = {"name": "lite", "steps": 3000}


def test_the_best_of_its_size_is_bold_whoever_it_is() -> None:
    results = [
        result("mine", "sf", {"slot_type_f1": 83.10, "slot_value_cer": 33.0}),
        result("mine", "asr", {"wer": 12.5, "cer": 3.9}),
    ]
    text = markdown(build_sections(results))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "**83.28**" in rows["DeCoAR 2.0 †"]  # ahead on F1, and bold although another is ours
    assert "**33.00**" in rows["mine"]
    assert "**12.10**" in rows["S-JEPA (paper) †"]
    assert "**3.44**" in rows["WavLM Large †"]  # of its own class
    assert "51.8M" in rows["mine"]
    assert "†" not in rows["mine"]
    assert "reported by others, not measured here" in text


def test_lite_results_are_never_in_the_same_table_as_full_ones() -> None:
    results = [
        result("mine", "asr", {"wer": 12.5, "cer": 3.9}),
        result("mine", "asr", {"wer": 40.0, "cer": 20.0}, protocol=LITE_PROTOCOL),
    ]
    full, lite = build_sections(results)
    assert (full.title, lite.title) == (FULL, LITE)
    assert not any("lite" in column for column in full.columns)
    assert lite.columns == ["asr-lite, 3,000 steps, wer", "asr-lite, 3,000 steps, cer"]
    assert not any(row.reported for row in lite.rows)
    assert "Not comparable with full results" in markdown([lite])


def test_seeds_of_one_encoder_are_averaged_and_decoders_have_columns() -> None:
    decoded = {"paper": {"wer": 9.0, "cer": 3.0}}
    runs = [result("mine", "asr", {"wer": wer}, decoded=decoded) for wer in (10.0, 12.0)]
    (section,) = build_sections(runs)
    mine = next(row for row in section.rows if row.name == "mine")
    assert mine.value("asr wer") == 11.0
    assert mine.value("asr+lm (paper) wer") == 9.0
    paper = next(row for row in section.rows if row.name == "S-JEPA (paper)")
    assert paper.value("asr+lm (paper) wer") == 8.5


def test_probes_show_deviations_and_units_their_own_table() -> None:
    score = {"mean": 99.0, "deviation": 0.25, "splits": []}
    probe = {
        "task": "probe",
        "corpus": "LibriSpeech dev-clean",
        "encoder": {"name": "mine", "parameters": 1, "fingerprint": "x"},
        "layers": {"input": {"speaker": score}, "layer 5": {"speaker": score | {"mean": 99.5}}},
    }
    units = {
        "task": "units",
        "corpus": "LibriSpeech dev-clean",
        "encoder": probe["encoder"],
        "units": {"kind": "kmeans", "clusters": 100},
        "metrics": {"pnmi": 0.51, "perplexity": 88.0},
    }
    text = markdown(build_sections([probe, units]))
    assert "99.50 ± 0.25" in text
    assert "kmeans 100 pnmi ↑" in text
    assert "| 99.70 |" in text.replace("**", "")  # reported
    elsewhere = markdown(build_sections([probe | {"corpus": "synthetic speech (demo)"}]))
    assert "## Probes on synthetic speech (demo)" in elsewhere
    assert "†" not in elsewhere  # what was reported on other data is not put beside


def test_tasks_outside_superb_are_not_called_superb() -> None:
    (section,) = build_sections([result("mine", "ravdess", {"accuracy": 50.0})])
    assert section.title == "Full protocol, not part of SUPERB"
    assert [row.name for row in section.rows] == ["mine"]


def test_latex_and_csv_say_the_same() -> None:
    sections = build_sections([result("my_encoder", "asr", {"wer": 12.0, "cer": 3.5})])
    written = latex(sections)
    assert r"my\_encoder & 51.8M & \textbf{12.00}" in written
    assert r"S-JEPA (paper)$^\dagger$" in written
    assert written.count(r"\begin{tabular}") == written.count(r"\end{tabular}") == 1
    columns = written.splitlines()[2].count("&")
    assert all(line.count("&") == columns for line in written.splitlines() if line.endswith(r"\\"))
    rows = list(csv.DictReader(io.StringIO(as_csv(sections))))
    mine = next(row for row in rows if row["encoder"] == "my_encoder" and row["column"] == "asr wer")
    assert (mine["source"], mine["best"], float(mine["value"])) == ("measured", "1", 12.0)
    assert float(mine["parameters_millions"]) == pytest.approx(51.8437)
    assert {row["source"] for row in rows} == {"measured", "reported"}


def test_results_are_found_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "results.json").write_text(json.dumps(result("mine", "asr", {"wer": 1.0})))
    assert len(find_results([tmp_path, tmp_path / "a"])) == 1
    (tmp_path / "c").mkdir()
    with pytest.raises(UserError, match=re.escape("no results.json below")):
        find_results([tmp_path / "c"])
    with pytest.raises(UserError, match="there is no folder"):
        find_results([tmp_path / "nowhere"])
    (tmp_path / "c" / "results.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        find_results([tmp_path / "c"])
