"""Recipes: the batch script with stand-ins for Slurm's commands, the sweeps of the studies, wrong arguments."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sjepa.commands import COMMANDS
from sjepa.config import flatten
from sjepa.settings_file import load_preset
from sjepa.sweep.file import read_sweep

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "recipes" / "paper.sbatch"


@pytest.mark.parametrize(
    ("code", "complete", "restarts", "requeued"),
    [
        (0, True, 0, False),
        (0, False, 0, True),  # stopped by a signal
        (1, False, 3, True),  # a node or a rank died
        (2, False, 0, False),  # a wrong setting
        (1, False, 100, False),
    ],
)
def test_a_job_goes_back_to_the_queue_until_its_run_is_complete(
    tmp_path: Path, code: int, complete: bool, restarts: int, requeued: bool
) -> None:
    commands = {
        "srun": f"exit {code}",
        "python": f"exit {0 if complete else 1}",
        "scontrol": f'echo "$@" > {tmp_path}/queue',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "USER": "me", "SLURM_JOB_ID": "7"}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, SCRIPT, "corpus", "run"], env=environment | {"SLURM_RESTART_COUNT": str(restarts)}, capture_output=True
    )
    assert done.returncode == (0 if complete or requeued else code)
    assert (tmp_path / "queue").exists() == requeued
    if requeued:
        assert (tmp_path / "queue").read_text() == "requeue 7\n"


def test_the_first_study_is_a_sweep_of_the_runs_that_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STUDY": "/study", "CORPORA": "/corpora", "NOISE": ""}.items():
        monkeypatch.setenv(name, value)
    sweep = read_sweep(ROOT / "recipes" / "study-adamw.toml", COMMANDS)
    results = ROOT / "benchmarks" / "results" / "study-adamw"
    kept = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    items = {item.name: item for item in sweep.items}
    assert set(kept) <= set(items)
    preset, compared = flatten(load_preset(str(ROOT / "recipes" / "half-hour-adamw.toml"))), 0
    for name, found in kept.items():
        config = items[name].config
        if config is not None:
            differing = {key: value for key, value in flatten(config).items() if value != preset[key]}
            # Settings that are younger than the kept results are in neither.
            assert differing == {key: value for key, value in found["settings"].items() if key in preset}, name
            compared += 1
    assert compared > 20
    parents = {name: item.parent.name for name, item in items.items() if item.parent and item.config}
    assert parents == {
        **{f"softened-{seed}": f"soft-{seed}" for seed in (0, 1, 2)},
        **{f"{name}-{seed}": f"soft-{seed}" for name in ("frozen", "fixed-layer") for seed in (0, 3)},
        **{f"{name}-0": "soft-0" for name in ("last-layer", "papers-decays")},
        **{f"{name}-2": "soft-2" for name in ("long", "frozen-long")},
        "fixed-decay-3": "soft-3",
        "hard-fixed-layer-3": "hard-3",
    }
    entries = {evaluation.name: evaluation for evaluation in sweep.evaluations}
    assert [name for name in items if entries["asr"].is_for(items[name])] == [
        "hubert-3", "fixed-layer-3", "hard-fixed-layer-3", "headline-0", "headline.phase1-0", "logmel", "untrained"
    ]  # fmt: skip
    assert entries["probe"].arguments(items["soft.phase1-1"]) == [
        "probe", "--encoder", "/study/soft-1/encoder-phase1", "--data", "/corpora", "--frames", "0",
        "--out", "/study/soft.phase1-1/results/probe",
    ]  # fmt: skip
    assert not entries["entropy"].is_for(items["soft.phase1-1"])


def test_the_study_is_a_sweep_whose_variants_share_the_first_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STUDY": "/study", "CORPORA": "/corpora", "NOISE": ""}.items():
        monkeypatch.setenv(name, value)
    long = {item.name: item for item in read_sweep(ROOT / "recipes" / "study.toml", COMMANDS).items}
    kept = {path.stem for path in (ROOT / "benchmarks" / "results" / "study").glob("*.json")}
    assert kept <= {*long, "whisper-tiny"}  # study.sh probes Whisper's encoder if it is there
    assert (long["no-dropout-short-0"].parent, long["no-dropout-short-0"].shared) == (long["no-dropout-0"], 1)
    items = {item.name: item for item in read_sweep(ROOT / "recipes" / "study-ablations.toml", COMMANDS).items}
    assert {path.stem for path in (ROOT / "benchmarks" / "results" / "study-ablations").glob("*.json")} <= set(items)
    for name, item in items.items():
        stem, _, seed = name.rpartition("-")
        if item.config is None or stem.startswith("paper"):
            continue
        first = "long-soft" if stem.startswith("long") else "soft"
        if item.config.mfcc.context:
            first = "long-discriminant-mfcc"
        if item.config.augment.speed:
            first = "long-speed"
        shares = (None, 0) if stem == first else (items[f"{first}-{seed}"], 1)
        assert (item.parent, item.shared) == shares, name


def test_the_recipe_for_iban_names_a_missing_folder_before_any_work(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / "iban" / name).mkdir(parents=True)
    bash = shutil.which("bash")
    assert bash is not None
    for arguments, whisper, missing in (
        ([tmp_path / "iban", tmp_path / "none"], "", tmp_path / "none"),
        ([tmp_path, tmp_path], "", tmp_path / "train"),
        ([tmp_path / "iban", tmp_path], str(tmp_path / "whisper"), tmp_path / "whisper"),
    ):
        environment = os.environ | {"WHISPER": whisper, "STUDY": str(tmp_path / "study")}
        done = subprocess.run(
            [bash, ROOT / "recipes" / "iban.sh", *arguments], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (2, f"there is no folder {missing}\n")
    assert not (tmp_path / "study").exists()
