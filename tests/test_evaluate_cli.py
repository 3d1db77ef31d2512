"""The evaluation commands as a user calls them, on a run that was just trained."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import superb_corpora as corpora

from sjepa.cli import dispatch
from sjepa.commands.units import Units
from sjepa.config import Config
from sjepa.data.synthetic import synthesise_corpus
from sjepa.errors import UserError
from sjepa.evaluate.labelled import corpus_suffix
from sjepa.evaluate.results import find_results, results_folder, write_results
from sjepa.evaluate.table import build_sections
from sjepa.train.loop import pretrain

pytest.importorskip("espeakng_loader")


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesise_corpus(tmp_path_factory.mktemp("spoken") / "c", voices=3, sentences_per_voice=4)


@pytest.fixture
def run(micro: Callable[..., Config], spoken: Path, tmp_path: Path) -> Path:
    assert pretrain(micro(), spoken, tmp_path / "small-run")
    return tmp_path / "small-run"


def test_one_encoder_goes_through_every_verb_into_one_table(
    run: Path, spoken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = corpora.voxceleb(tmp_path / "vox", speakers=3), tmp_path / "results"
    command = ["superb", "sid", "--encoder", str(run), "--data", str(data), "--lite", "--steps", "4"]
    dispatch([*command, "--out", str(out / "sid")])
    printed = capsys.readouterr().out
    assert "sid-lite on small-run (" in printed
    assert "lite protocol, 4 steps on VoxCeleb1: not comparable with full results" in printed
    assert "audio seconds per second" in printed
    results = json.loads((out / "sid" / "results.json").read_text())
    assert f"test accuracy {results['metrics']['accuracy']:.2f} (chance 33.33)" in printed
    assert len(results["folds"][0]["layer_weights"]) == 3

    dispatch([*command, "--out", str(out / "sid")])  # again: read from its files, with the same result
    assert json.loads((out / "sid" / "results.json").read_text())["metrics"] == results["metrics"]

    probe = ["probe", "--encoder", str(run), "--data", str(spoken), "--layer", "all", "--frames", "600"]
    dispatch([*probe, "--out", str(out / "probe")])
    assert "layer 1: phoneme mlp, held-out speakers" in capsys.readouterr().out
    for kind in ("head", "predictor"):
        dispatch(["units", "--encoder", str(run), "--data", str(spoken), "--out", str(out / kind), "--units", kind])
        assert f"small-run, {kind} on" in capsys.readouterr().out
    kmeans = ["units", "--encoder", "mfcc", "--data", str(spoken), "--units", "kmeans", "--clusters", "20"]
    dispatch([*kmeans, "--out", str(out / "kmeans")])
    same = json.loads((out / "kmeans" / "results.json").read_text())["metrics"]["pnmi"]
    assert same > 0.2
    dispatch([*kmeans, "--codebook", str(data), "--out", str(out / "other")])
    other = json.loads((out / "other" / "results.json").read_text())
    assert other["units"]["codebook"] == data.name
    assert other["metrics"]["pnmi"] != same
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.m4a").touch()
    with pytest.raises(UserError, match="there is no audio in"):
        dispatch([*kmeans, "--codebook", str(tmp_path / "empty"), "--out", str(out / "empty")])
    assert "empty: 1 .m4a file cannot be read" in capsys.readouterr().out

    capsys.readouterr()
    dispatch(["table", str(out)])
    table = capsys.readouterr().out
    assert "## Lite protocols" in table
    assert "## Probes on synthetic speech (c)" in table
    assert "## Units on synthetic speech (c)" in table
    assert "small-run" in table
    dispatch(["table", str(out), "--format", "latex", "--out", str(tmp_path / "table.tex")])
    assert (tmp_path / "table.tex").read_text().startswith(r"\begin{tabular}")


def test_abx_without_fastabx_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastabx", None)
    with pytest.raises(UserError, match="ABX needs fastabx"):
        dispatch(["units", "--encoder", str(tmp_path / "none"), "--data", str(tmp_path), "--abx"])


def test_probes_without_scikit_learn_are_refused_before_audio_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    (tmp_path / "labels.jsonl").write_text('{"path": "a.wav", "speaker": "a"}\n')
    (tmp_path / "a.wav").write_text("not audio")
    with pytest.raises(UserError, match=r"probes need scikit-learn: pip install 'sjepa\[superb\]'"):
        dispatch(["probe", "--encoder", "mfcc", "--data", str(tmp_path), "--out", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", "all"], "units come from one layer"),
        (["--units", "mixture", "--layer", "0"], "the mixture reads its own layer; --layer is for --units kmeans"),
        (["--layer", "0"], "the cluster head reads the last layer; --layer is for --units kmeans"),
        (["--codebook", "speech"], "--codebook is for --units kmeans"),
        (["--clusters", "50"], "--clusters is for --units kmeans"),
    ],
)
def test_units_refuse_options_before_they_load_an_encoder(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["units", "--encoder", str(tmp_path / "none"), "--data", str(tmp_path), *options])


def test_options_that_do_not_go_together_are_refused_in_one_line(tmp_path: Path) -> None:
    rest = ["--encoder", "mfcc", "--data", str(tmp_path)]
    with pytest.raises(UserError, match="leave --lr out"):
        dispatch(["superb", "sid", *rest, "--sweep", "--lr", "1e-3"])
    with pytest.raises(UserError, match="--language-model is for asr"):
        dispatch(["superb", "ravdess", *rest, "--language-model", "x.arpa"])
    with pytest.raises(UserError, match="only those have a cluster head"):
        dispatch(["units", *rest])
    (tmp_path / "file").write_text("")
    for command in ("probe", "units"):
        with pytest.raises(UserError, match="file is a file: give a folder"):
            dispatch([command, *rest, "--out", str(tmp_path / "file")])


def test_seeds_of_a_part_of_a_corpus_share_a_row(spoken: Path, tmp_path: Path) -> None:
    for seed in ("0", "1"):
        rest = ["--encoder", "mfcc", "--data", str(spoken), "--frames", "400", "--seed", seed]
        dispatch(["probe", *rest, "--out", str(tmp_path / f"probe-{seed}")])
        dispatch(["units", *rest, "--units", "kmeans", "--clusters", "5", "--out", str(tmp_path / f"units-{seed}")])
    sections = build_sections(find_results([tmp_path]))
    name = f"synthetic speech ({spoken.name}), phones of about 400 frames"
    assert [section.title for section in sections] == [f"Probes on {name}", f"Units on {name}"]
    assert [[row.seeds(section.columns[0]) for row in section.rows] for section in sections] == [[2], [2]]


def test_corpora_with_the_same_folder_name_keep_their_results_apart(
    spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    iban, swahili = (shutil.copytree(spoken, tmp_path / language / "data" / "dev") for language in ("iban", "swahili"))
    labels = swahili / "labels.jsonl"
    labels.write_text(labels.read_text().replace('"speaker": "', '"speaker": "swahili-'))
    probe = ["probe", "--encoder", "mfcc", "--frames", "400", "--data"]
    units = ["units", "--encoder", "mfcc", "--units", "kmeans", "--clusters", "5", "--data"]
    for command in (probe, units):
        for data in (iban, swahili, iban):
            dispatch([*command, str(data)])
    assert len(list(Path("runs").rglob("results.json"))) == 4
    sections = build_sections(find_results([Path("runs")]))
    assert len({section.title for section in sections}) == 4
    assert [row.seeds(section.columns[0]) for section in sections for row in section.rows] == [1, 1, 1, 1]
    moved = shutil.move(iban, tmp_path / "moved" / "dev")
    dispatch([*units, str(moved)])
    assert len(list(Path("runs").rglob("results.json"))) == 4


def test_another_measurement_has_another_folder() -> None:
    usual = Units(encoder="e", data=Path("d"))
    assert results_folder(usual, "units", "untrained e") == Path("runs/units/untrained-e")
    other = replace(usual, units="kmeans", layer="2", abx=True, device="cpu")
    assert results_folder(other, "units", "e") == Path("runs/units/e-units-kmeans-layer-2-abx")
    books = [Path("/speech/train"), Path("/speech/../speech/train"), Path("/other/train")]
    learned = [replace(usual, units="kmeans", codebook=book) for book in books]
    one, same, another = (results_folder(command, "units", "e") for command in learned)
    assert re.fullmatch(r"e-units-kmeans-codebook-train-\w{7}", one.name)
    assert same == one != another
    assert results_folder(usual, "units", "e", "my corpus") == Path("runs/units/e-my-corpus")
    assert results_folder(replace(usual, out=Path("x")), "units", "e") == Path("x")
    labelled = replace(usual, alignments=Path("/labels/mfa"))
    assert results_folder(labelled, "units", "e") == Path("runs/units/e-alignments-mfa")


def test_results_of_another_encoder_with_the_same_name_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = Units(encoder="one/e", data=Path("d"))
    folder = results_folder(command, "units", "e", fingerprint="one")
    encoder = {"name": "e", "parameters": 1, "fingerprint": "one"}
    kept = {"task": "units", "corpus": "c", "encoder": encoder, "units": {"kind": "head", "clusters": 2}, "metrics": {}}
    write_results(folder, kept)
    assert results_folder(command, "units", "e", fingerprint="one") == folder  # again
    with pytest.raises(UserError, match="has results of another encoder named e: choose a folder with --out"):
        results_folder(replace(command, encoder="two/e"), "units", "e", fingerprint="two")
    assert results_folder(replace(command, out=folder), "units", "e", fingerprint="two") == folder


def test_paths_of_results_name_a_users_corpus_but_not_librispeech(spoken: Path, tmp_path: Path) -> None:
    assert corpus_suffix(spoken, "dev-clean") == spoken.name
    (tmp_path / "LibriSpeech" / "dev-clean").mkdir(parents=True)
    assert corpus_suffix(tmp_path, "dev-clean") == ""


def test_results_of_a_run_lie_in_it_where_its_page_finds_them(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "encoder-phase1").mkdir()
    for source in (tmp_path, tmp_path / "encoder-phase1", f"untrained:{tmp_path}"):
        assert results_folder(Units(encoder=str(source), data=Path("d")), "units", "e") == (
            tmp_path / "results" / "units" / "e"
        )
