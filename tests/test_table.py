"""The table of results: counted sizes, best values in bold, marked reported rows, a separate lite table."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate import reported
from sjepa.evaluate.metric import SectionKind
from sjepa.evaluate.results import find_results
from sjepa.evaluate.section_key import TITLES
from sjepa.evaluate.table import build_sections
from sjepa.evaluate.tabular import to_csv, to_latex, to_markdown


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
    text = to_markdown(build_sections(results))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "**83.28**" in rows["DeCoAR 2.0 †"]  # ahead on F1, and bold although another is ours
    assert "**33.00**" in rows["mine"]
    assert "**12.10**" in rows["S-JEPA (paper) †"]
    assert "**3.44**" in rows["WavLM Large †"]  # of its own class
    assert "51.8M" in rows["mine"]
    assert "†" not in rows["mine"]
    assert "reported by others, not measured here" in text


def test_results_of_other_labels_or_hours_stand_in_columns_of_their_own() -> None:
    def lite(name: str, labels: str, hours: float) -> dict[str, Any]:
        data = [{"train_hours": hours}]
        return result(name, "pr", {"per": 40.0}, protocol=LITE_PROTOCOL, labels=labels, data=data)

    sections = build_sections([lite("a", "0123456789", 3.77), lite("b", "abcdefghij", 3.77), lite("c", "x", 0.05)])
    columns = [f"pr-lite, 3,000 steps, 3.8 h, labels {labels}, per" for labels in ("0123456", "abcdefg")]
    assert sorted(sections[0].columns) == ["pr-lite, 3,000 steps, 0.05 h, per", *columns]
    assert "labels abcdefg, per ↓" in to_markdown(sections)
    (section,) = build_sections([lite("a", "0123456789", 3.77), lite("b", "0123456789", 3.77)])
    assert section.columns == ["pr-lite, 3,000 steps, 3.8 h, per"]


def test_a_part_of_a_corpus_is_called_one() -> None:
    units = {"units": {"kind": "head", "clusters": None}, "metrics": {"pnmi": 0.5}, "corpus": "LibriSpeech dev-clean"}
    (section,) = build_sections(
        [result("a", "units", {}) | units | {"data": {"utterances": 160, "of_utterances": 160}}]
    )
    assert section.title == "Units on LibriSpeech dev-clean, only 160 utterances"


def test_lite_results_are_never_in_the_same_table_as_full_ones() -> None:
    results = [
        result("mine", "asr", {"wer": 12.5, "cer": 3.9}),
        result("mine", "asr", {"wer": 40.0, "cer": 20.0}, protocol=LITE_PROTOCOL),
    ]
    full, lite = build_sections(results)
    assert (full.key.kind, lite.key.kind) == (SectionKind.SUPERB, SectionKind.LITE)
    assert [section.title for section in (full, lite)] == [TITLES[SectionKind.SUPERB], TITLES[SectionKind.LITE]]
    assert not any("lite" in column for column in full.columns)
    assert lite.columns == ["asr-lite, 3,000 steps, wer", "asr-lite, 3,000 steps, cer"]
    assert not any(row.reported for row in lite.rows)
    assert "Not comparable with full results" in to_markdown([lite])


def test_seeds_of_one_encoder_are_averaged_and_decoders_have_columns() -> None:
    decoded = {"paper": {"wer": 9.0, "cer": 3.0}}
    runs = [result("mine", "asr", {"wer": wer}, decoded=decoded, seed=seed) for seed, wer in enumerate((10.0, 12.0))]
    (section,) = build_sections(runs)
    mine = next(row for row in section.rows if row.name == "mine")
    assert mine.value("asr wer") == 11.0
    assert mine.value("asr+lm (paper) wer") == 9.0
    assert "11.00 ± 1.00 (2 seeds)" in to_markdown([section])
    paper = next(row for row in section.rows if row.name == "S-JEPA (paper)")
    assert paper.value("asr+lm (paper) wer") == 8.5


def probe(layer: str = "layer 5", mean: float = 99.5, **more: Any) -> dict[str, Any]:
    score = {"mean": mean, "deviation": 0.25, "splits": []}
    return {
        "task": "probe",
        "corpus": "LibriSpeech dev-clean",
        "encoder": {"name": "mine", "parameters": 1, "fingerprint": "x", "states": 7},
        "layers": {"input": {"speaker": score | {"mean": 12.0}}, layer: {"speaker": score}},
    } | more


def units(pnmi: float = 0.51, **kind: Any) -> dict[str, Any]:
    return {
        "task": "units",
        "corpus": "LibriSpeech dev-clean",
        "encoder": probe()["encoder"],
        "units": {"kind": "kmeans", "clusters": 100, "layer": "layer 5"} | kind,
        "metrics": {"pnmi": pnmi, "perplexity": 88.0},
    }


def test_probes_show_deviations_and_units_their_own_table() -> None:
    text = to_markdown(build_sections([probe(), units()]))
    assert "99.50 ± 0.25" in text
    assert "kmeans 100 pnmi ↑" in text
    assert "| 99.70 ± 0.30 |" in text.replace("**", "")  # reported, with the deviation over its splits
    assert "| 59.50 ± 1.00 |" in text.replace("**", "")
    elsewhere = to_markdown(build_sections([probe(corpus="synthetic speech (demo)")]))
    assert "## Probes on synthetic speech (demo)" in elsewhere
    assert "†" not in elsewhere  # what was reported on other data is not put beside


def test_a_table_of_one_encoder_explains_no_marks() -> None:
    (alone,) = build_sections([probe()], with_reported=False)
    assert alone.note == "Percent, mean ± deviation over splits."
    (beside_others,) = build_sections([probe()])
    assert beside_others.note.endswith("with 67 phonemes of another alignment. Best of each size class in bold.")


def test_size_classes_have_headings_as_in_the_paper() -> None:
    """Each row stands below the heading of its class, which the sizes decide."""
    sections = build_sections([result("mine", "asr", {"wer": 12.0}), result("big", "asr", {"wer": 5.0}, 94_000_000)])
    lines = [line.split("|")[1].strip() for line in to_markdown(sections).splitlines() if line.startswith("|")][2:]
    heads = ["*Below 90M*", "*Base class (about 95M)*", "*Large class (316M and more)*"]
    places = [lines.index(head) for head in heads]
    assert places[0] == 0
    assert places[0] < lines.index("mine") < lines.index("DeCoAR 2.0 †") < places[1]
    assert places[1] < lines.index("big") < places[2] < lines.index("WavLM Large †")
    written = to_latex(sections)
    assert written.count(r"\multicolumn{17}{l}{\textit{") == 3
    assert "Below 90M" not in to_markdown(build_sections([probe()]))


def test_the_table_of_probes_says_that_pitch_and_energy_are_not_accuracies() -> None:
    score = {"mean": 60.0, "deviation": 1.0, "splits": []}
    for name in ("pitch R²", "energy R²"):
        text = to_markdown(build_sections([probe() | {"layers": {"layer 5": {"speaker": score, name: score}}}]))
        assert "| accuracy or R² (%) | mine |" in text


def test_the_table_of_probes_has_encoders_as_columns() -> None:
    """The paper's Table 2, cell by cell, deviations of reported rows included."""
    text = to_markdown(build_sections([probe()]))
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    assert head == ["accuracy (%)", "mine", "S-JEPA (paper) †", "HuBERT Base †", "WavLM Base †"]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["parameters"] == ["0.0M", "51.8M", "94.7M", "94.7M"]
    assert cells["speaker ↑"] == ["99.50 ± 0.25", "**99.70 ± 0.30**", "**99.10 ± 0.30**", "91.10 ± 1.00"]
    assert cells["phoneme mlp, random frames ↑"] == ["–", "88.00 ± 0.10", "86.50 ± 0.10", "**87.50 ± 0.10**"]
    lines = to_latex(build_sections([probe()])).splitlines()
    assert lines[2] == (
        r"accuracy (\%) & mine & S-JEPA (paper)$^\dagger$ & HuBERT Base$^\dagger$ & WavLM Base$^\dagger$ \\"
    )


def test_only_seeds_are_averaged() -> None:
    """Another layer, rate or kind of unit is another measurement, and the table says which."""
    results = [probe(), probe("layer 2", 70.0), probe(mean=98.5, seed=1)]
    (section,) = build_sections(results, with_reported=False)
    assert {row.name: row.scores["speaker"] for row in section.rows} == {"mine": [99.5, 98.5], "mine, layer 2": [70.0]}
    other = units(0.3, layer="layer 2")
    other["encoder"] = other["encoder"] | {"name": "other", "fingerprint": "other"}
    (section,) = build_sections([units(0.1, layer="layer 0"), units(0.6), other])
    assert {row.name: row.value("kmeans 100 pnmi") for row in section.rows} == {
        "mine, layer 0": 0.1,
        "mine": 0.6,
        "other, layer 2": 0.3,
    }
    long = [units(0.5, codebook=f"train-clean-{hours}") | {"seed": hours, "precision": "fp32"} for hours in (100, 360)]
    (section,) = build_sections(long)
    assert {row.name: row.value("kmeans 100 pnmi") for row in section.rows} == {
        "mine (units codebook train-clean-100)": 0.5,
        "mine (units codebook train-clean-360)": 0.5,
    }
    protocol = {"name": "full", "steps": 200_000, "lr": 1e-4}
    fast, slow = (
        result("mine", "asr", {"wer": wer}, learning_rate=rate, protocol=protocol)
        for wer, rate in ((90.0, 0.1), (12.0, 1e-4))
    )
    (section,) = build_sections([fast, slow], with_reported=False)
    assert {row.name: row.value("asr wer") for row in section.rows} == {
        "mine (learning rate 0.1)": 90.0,
        "mine (learning rate 0.0001)": 12.0,
    }
    swept = fast | {"dev": {"by_learning_rate": {"0.1": 80.0, "0.0001": 82.0}}}
    assert "Learning rates that differ from the protocol: mine asr 0.1." in to_markdown(build_sections([swept]))
    assert "differ from the protocol" not in to_markdown(build_sections([slow]))


def sampled_probe(seed: int, used: int, **more: Any) -> dict[str, Any]:
    """Probes of phones of some of the utterances of dev-clean. The seed decides which."""
    data = {"utterances": 2703, "phone_utterances": used, "phone_frames": 350 * used, "phones": 40}
    return probe(mean=90.0 + seed, seed=seed, data=data, **more)


def test_seeds_that_choose_other_utterances_are_averaged() -> None:
    seeds = [sampled_probe(0, 356, requested_frames=125_000), sampled_probe(1, 349, requested_frames=125_000)]
    (section,) = build_sections(seeds, with_reported=False)
    assert section.title == "Probes on LibriSpeech dev-clean, phones of about 125,000 frames"
    assert [(row.name, row.scores["speaker"]) for row in section.rows] == [("mine", [90.0, 91.0])]
    scored = [
        units(pnmi) | {"data": {"utterances": used, "of_utterances": 2703, "frames": 700 * used}, "seed": seed}
        for seed, used, pnmi in ((0, 356, 0.5), (1, 349, 0.7))
    ]
    (section,) = build_sections([each | {"requested_frames": 250_000} for each in scored])
    assert [row.value("kmeans 100 pnmi") for row in section.rows] == [pytest.approx(0.6)]
    # Another number of frames has its own table, and so have older results that lack the number.
    assert len(build_sections([*seeds, sampled_probe(0, 40, requested_frames=14_000)])) == 2
    assert len(build_sections([sampled_probe(0, 356), sampled_probe(1, 349)])) == 2
    older = sampled_probe(0, 356) | {"encoder": probe()["encoder"] | {"name": "older"}}
    (section,) = build_sections([*seeds, older], with_reported=False)
    assert [row.name for row in section.rows] == ["mine", "older"]


def test_a_seed_that_was_measured_twice_counts_once() -> None:
    again = [probe(seed=0), probe(mean=99.4, seed=0, audio_seconds_per_second=9.0), probe(mean=98.5, seed=1)]
    (section,) = build_sections(again, with_reported=False)
    assert [row.scores["speaker"] for row in section.rows] == [[99.5, 98.5]]
    decoded = {"paper": {"wer": 9.0}}
    runs = [result("mine", "asr", {"wer": 10.0}, seed=0), result("mine", "asr", {"wer": 10.0}, seed=0, decoded=decoded)]
    (section,) = build_sections(runs, with_reported=False)
    assert section.rows[0].scores == {"asr wer": [10.0], "asr+lm (paper) wer": [9.0]}


def test_every_task_of_the_leaderboard_has_reported_rows() -> None:
    """Two rows of the leaderboard, in the order of its own page."""
    columns = ["pr per", "ks accuracy", "ic accuracy", "sid accuracy", "er accuracy", "asr wer", "asr+lm (board) wer"]
    columns += ["qbe mtwv", "sf slot_type_f1", "sf slot_value_cer", "asv eer", "sd der"]
    expected = {
        "HuBERT Base": [5.41, 96.30, 98.34, 81.42, 64.92, 6.42, 4.79, 7.36, 88.53, 25.20, 5.11, 5.88],
        "DistilHuBERT": [16.27, 95.98, 94.99, 73.54, 63.02, 13.37, 9.22, 5.11, 82.57, 35.59, 8.55, 6.19],
    }
    rows = {row.name: row.scores for row in reported.SUPERB}
    assert {name: [rows[name][column] for column in columns] for name in expected} == expected
    assert sum("sid accuracy" in scores for scores in rows.values()) == 18
    (section,) = build_sections([result("mine", "sid", {"accuracy": 70.0}, 94_000_000)])
    assert section.best("sid accuracy", section.rows[-1].group) == 95.49  # WavLM Large
    assert all(column in section.columns for column in columns)


def test_a_learning_rate_that_was_not_swept_is_marked() -> None:
    """Every row of the board is the best of a sweep, unlike a row with the default rate."""
    protocol = {"name": "full", "steps": 200_000, "lr": 1e-4}
    plain = result("plain", "asr", {"wer": 12.5}, learning_rate=1e-4, protocol=protocol)
    other = result("other", "asr", {"wer": 12.6}, learning_rate=1e-3, protocol=protocol)
    swept = result("swept", "asr", {"wer": 12.0}, learning_rate=1e-4, protocol=protocol)
    swept |= {"dev": {"by_learning_rate": {"0.0001": 80.0, "0.01": 82.0}}}
    sections = build_sections([plain, other, swept])
    text = to_markdown(sections)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "12.50 ‡" in rows["plain"]
    assert "12.60 ‡" in rows["other"]
    assert "‡" not in rows["swept"] + rows["S-JEPA (paper) †"]
    assert "‡ learning rate not swept; the leaderboard swept it for each row." in text
    assert r"12.50 $^\ddagger$" in to_latex(sections)
    values = {row["encoder"]: row["swept"] for row in csv.DictReader(io.StringIO(to_csv(sections)))}
    assert (values["plain"], values["other"], values["swept"], values["WavLM Base"]) == ("0", "0", "1", "1")
    assert "‡" not in to_markdown(build_sections([swept]))
    lite = result("lite", "asr", {"wer": 50.0}, learning_rate=1e-3, protocol=LITE_PROTOCOL | {"lr": 1e-3})
    assert "‡" not in to_markdown(build_sections([lite]))  # nothing reported stands beside it


def test_a_part_of_the_corpus_has_a_table_of_its_own() -> None:
    part = probe(data={"utterances": 2703, "phone_utterances": 356})
    titles = {section.title for section in build_sections([probe(), part])}
    assert titles == {
        "Probes on LibriSpeech dev-clean",
        "Probes on LibriSpeech dev-clean, phones of 356 of 2,703 utterances",
    }
    (few,) = build_sections([probe(data={"utterances": 274, "phone_utterances": 274})])
    assert few.title == "Probes on LibriSpeech dev-clean, only 274 utterances"
    assert not any(row.reported for row in few.rows)


def test_corpora_with_the_same_name_and_other_labels_have_their_own_tables() -> None:
    def labelled(name: str, mean: float, **more: Any) -> dict[str, Any]:
        return probe(mean=mean, corpus="labelled speech (dev)", encoder=probe()["encoder"] | {"name": name}, **more)

    older, iban = labelled("older", 70.0), labelled("mine", 80.0, labels="0123456789")
    (section,) = build_sections([older, iban])  # what is not known may be the same
    assert section.title == "Probes on labelled speech (dev)"
    sections = build_sections([older, iban, labelled("mine", 60.0, labels="abcdefghij")])
    assert {section.title: [row.value("speaker") for row in section.rows] for section in sections} == {
        "Probes on labelled speech (dev), labels 0123456": [80.0],
        "Probes on labelled speech (dev), labels abcdefg": [60.0],
        "Probes on labelled speech (dev), labels unknown": [70.0],
    }


def test_tasks_outside_superb_are_not_called_superb() -> None:
    (section,) = build_sections([result("mine", "ravdess", {"accuracy": 50.0})])
    assert section.title == "Full protocol, not part of SUPERB"
    assert [row.name for row in section.rows] == ["mine"]


def test_latex_and_csv_say_the_same() -> None:
    sections = build_sections([result("my_encoder", "asr", {"wer": 12.0, "cer": 3.5})])
    written = to_latex(sections)
    assert r"my\_encoder & 51.8M & \textbf{12.00}" in written
    assert r"S-JEPA (paper)$^\dagger$" in written
    assert "reported by others, not measured here" in written
    assert written.count(r"\begin{tabular}") == written.count(r"\end{tabular}") == 1
    columns = written.splitlines()[2].count("&")
    named = [line for line in written.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert all(line.count("&") == columns for line in named)
    rows = list(csv.DictReader(io.StringIO(to_csv(sections))))
    mine = next(row for row in rows if row["encoder"] == "my_encoder" and row["column"] == "asr wer")
    assert (mine["source"], mine["best"], float(mine["value"])) == ("measured", "1", 12.0)
    assert float(mine["parameters_millions"]) == pytest.approx(51.8437)
    assert {row["source"] for row in rows} == {"measured", "reported"}


def test_results_are_found_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "results.json").write_text(json.dumps(result("mine", "asr", {"wer": 1.0})))
    assert len(find_results([tmp_path, tmp_path / "a"])) == 1
    assert len(find_results([tmp_path / "a" / "b" / "results.json"])) == 1
    (tmp_path / "c").mkdir()
    with pytest.raises(UserError, match="no scores below these folders"):
        dispatch(["table", str(tmp_path / "c")])
    with pytest.raises(UserError, match="there is no folder"):
        find_results([tmp_path / "nowhere"])
    for others in ("[1]", '{"task": "asr", "encoder": "x"}', '{"task": "asr", "encoder": {"name": "x"}}'):
        (tmp_path / "c" / "results.json").write_text(others)
        assert find_results([tmp_path / "c"]) == []
    (tmp_path / "c" / "results.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        find_results([tmp_path / "c"])


def test_names_are_text_in_every_format() -> None:
    hostile = "\\input{/etc/passwd} a|b <script>x</script> $x^2$ ~ `c` [d](javascript:e)\n\\end{tabular}"
    sections = build_sections([result(hostile, "asr", {"wer": 1.0}, corpus=hostile)], with_reported=False)
    written = to_latex(sections)
    assert r"\textbackslash{}input\{/etc/passwd\}" in written
    assert r"\$x\textasciicircum{}2\$" in written
    assert written.count(r"\end{tabular}") == 1
    text = to_markdown(sections)
    row = next(line for line in text.splitlines() if "passwd" in line)
    assert row.count("|") - row.count("\\|") == 4  # cells of name, size and score
    assert "<script" not in text
    assert r"\[d\]" in text
