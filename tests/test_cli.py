"""The command line: help, overrides, and one clear line for every mistake."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import babble

from sjepa import cli
from sjepa.bounds import SEED
from sjepa.config import Config
from sjepa.device import choose_device
from sjepa.errors import UserError
from sjepa.runs.events import seconds_trained
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import from_toml, load_preset, to_toml
from sjepa.train.loop import pretrain


def sjepa(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in this process, which spares it the import of torch: what it prints, and its exit code."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


def start_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "sjepa", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, env=environment)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """An error after whatever progress was shown, in one line unless `words` has several; no traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    several = any("\n" in word for word in words)
    last = done.stderr[done.stderr.rindex("sjepa: ") :] if several else done.stderr.splitlines()[-1]
    assert last.startswith("sjepa: ")
    for word in words:
        assert word in last


@pytest.fixture
def preset(tmp_path: Path, micro: Callable[..., Config]) -> Path:
    path = tmp_path / "micro.toml"
    path.write_text(to_toml(micro()))
    return path


def test_config_prints_what_a_run_would_use_with_overrides() -> None:
    done = sjepa("config", "--preset", "tiny", "--phase2.k", 500, "--phase2.warmup", 0.25)
    config = from_toml(done.stdout, "output")
    assert config.phases[1].k == 500
    assert config.phases[1].warmup == 0.25
    assert config.encoder == load_preset("tiny").encoder


def test_help_imports_no_torch() -> None:
    """Except for commands whose options are the settings of a run, which live next to the code that they configure."""
    code = """
import sys
from sjepa.cli import main
from sjepa.commands import COMMANDS
for command in COMMANDS.keys() - {"config", "pretrain"}:
    try:
        main([command, "--help"])
    except SystemExit:
        pass
    assert "torch" not in sys.modules, command
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_commands_that_only_read_and_write_files_import_no_torch(
    finished_run: Path, corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    (run / "results").mkdir()
    result = {"task": "er", "protocol": {"name": "full"}, "section": "superb", "better": {"accuracy": "higher"}}
    encoder = {"name": "mine", "parameters": 1, "fingerprint": "f", "states": 3}
    scores = {"encoder": encoder, "metrics": {"accuracy": 60.0}, "decoded": {}}
    (run / "results" / "results.json").write_text(json.dumps(result | scores))
    cost = {"macs_per_second": None, "threads": 1, "seconds": 1.0, "cpu_ms": 5.0, "encoder": encoder}
    (run / "results" / "cost.json").write_text(json.dumps(cost))
    code = """
import sys
from sjepa.cli import main
for call in sys.argv[1:]:
    main(call.split("|"))
    assert "torch" not in sys.modules, call
"""
    calls = [
        f"index|{corpus}|--out|{tmp_path / 'index'}",
        f"shard|{tmp_path / 'index'}|--out|{tmp_path / 'shards'}",
        f"table|{run}",
        f"report|{run}",
        f"figures|{run}|--out|{tmp_path / 'figures'}",
        f"analyze|clusters|{run}",
        f"analyze|clusters|{run}|--redraw",
    ]
    done = subprocess.run([sys.executable, "-c", code, *calls], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "CPU ms (1 s, 1 thread)" in done.stdout


def test_help_explains_every_field() -> None:
    text = " ".join(sjepa("pretrain", "--help").stdout.replace("│", " ").split())
    for name in (
        "--phase2.k ",
        "--phase2.ema-switch-every",
        "--encoder.layerdrop",
        "--batches.seconds",
        "--mask.ratio",
    ):
        assert name in text
    assert "Share of frames that are masked in each utterance" in text


def test_unknown_words_get_suggestions() -> None:
    refused(sjepa("config", "--preset", "tinny"), "did you mean tiny?")
    done = sjepa("config", "--preset", "tiny", "--phase2.kk", 3)
    assert done.returncode == 2
    assert "--phase2.k " in done.stderr + done.stdout
    refused(sjepa("pretrian"), "did you mean pretrain?")


@pytest.mark.parametrize(
    "command", [name for name in cli.COMMANDS if name not in ("plan", "config", "export", "watch")]
)
def test_nothing_is_written_below_a_file(command: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("words")
    for out in (["--out", f"{tmp_path}/words/new/x"], [f"--out={tmp_path}/words/x"]):
        with pytest.raises(UserError, match=r"words is a file: nothing can be written below it$"):
            cli.dispatch([command, *out])


def test_a_file_in_place_of_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("words")
    for call in (["demo"], ["analyze", "erank", str(tmp_path)]):
        with pytest.raises(UserError, match="words is a file: give a folder"):
            cli.dispatch([*call, "--out", str(tmp_path / "words")])


def test_a_missing_gpu_is_reported_for_either_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=r"^device cuda: there is no GPU that torch can use"):
        choose_device("cuda")


def test_a_run_needs_a_preset_and_audio(tmp_path: Path, corpus: Path) -> None:
    refused(start_process("pretrain", "--out", tmp_path / "run", "--preset", "tiny"), "--data")
    mistyped = f"there is no run in {tmp_path / 'run'}; to start one, choose a preset"
    refused(sjepa("pretrain", "--out", tmp_path / "run", "--data", corpus), mistyped)
    refused(sjepa("pretrain", "--out", tmp_path / "run", "--preset", "tiny"), "--data")
    assert not (tmp_path / "run").exists()


def test_folders_without_usable_audio_are_refused(tmp_path: Path, preset: Path) -> None:
    def attempt(folder: Path) -> subprocess.CompletedProcess[str]:
        return sjepa("pretrain", "--preset", preset, "--data", folder, "--out", tmp_path / "run")

    refused(attempt(tmp_path / "missing"), "there is no folder")
    refused(attempt(preset), "is a file")
    for name in ("empty", "text", "short", "silent", "nan", "cut"):
        (tmp_path / name).mkdir()
    refused(attempt(tmp_path / "empty"), "no audio in")
    (tmp_path / "text" / "a.wav").write_text("these are words")
    refused(attempt(tmp_path / "text"), "no usable audio", "a.wav")
    soundfile.write(tmp_path / "short" / "a.wav", np.ones(300) * 0.1, 16_000)
    refused(attempt(tmp_path / "short"), "300 samples are too few: a frame needs 400")
    soundfile.write(tmp_path / "silent" / "a.wav", np.zeros(30_000), 16_000)
    refused(attempt(tmp_path / "silent"), "every sample is zero")
    soundfile.write(tmp_path / "nan" / "a.wav", np.full(30_000, np.nan), 16_000, subtype="FLOAT")
    refused(attempt(tmp_path / "nan"), "not finite")
    soundfile.write(tmp_path / "cut" / "a.flac", babble(2.0, 0), 16_000)
    whole = (tmp_path / "cut" / "a.flac").read_bytes()
    (tmp_path / "cut" / "a.flac").write_bytes(whole[: len(whole) // 2])
    refused(attempt(tmp_path / "cut"), "a.flac")
    assert not (tmp_path / "run").exists()


def test_more_components_than_frames_is_refused(tmp_path: Path, preset: Path, corpus: Path) -> None:
    done = sjepa("pretrain", "--preset", preset, "--data", corpus, "--out", tmp_path / "run", "--phase1.k", 5000)
    refused(done, "K = 5000 components need at least as many frames")
    options = ("--data", corpus, "--out", tmp_path / "run")
    refused(sjepa("pretrain", "--preset", preset, *options, "--phase2.k", 5000), "K = 5000 components")  # of phase 2
    refused(sjepa("pretrain", "--preset", preset, *options, "--gmm.reservoir", 5), "there are 5")
    # Twelve utterances of up to 2 s; crops keep four frames of each.
    done = sjepa("pretrain", "--preset", preset, *options, "--batches.buckets", 0.1, "--phase2.k", 50)
    refused(done, "K = 50 components need at least as many frames; there are 48")
    for name, value in (("buckets", 0.01), ("max-seconds", 0.00001)):
        refused(sjepa("pretrain", "--preset", preset, *options, f"--batches.{name}", value), "between 0.1 and 3,600")
    refused(
        sjepa("pretrain", "--preset", preset, *options, "--phase2.batch-seconds", 0.1, "--train.accumulate", 3),
        "in 3 parts",
    )
    assert not (tmp_path / "run").exists()  # so that the same --out can be given again


def test_a_directory_of_another_run_is_refused_and_untouched(
    tmp_path: Path, preset: Path, corpus: Path, micro: Callable[..., Config]
) -> None:
    run = tmp_path / "run"
    assert pretrain(micro(), corpus, run, show=False)
    before = (run / "metrics.jsonl").read_bytes()
    changed = sjepa("pretrain", "--preset", preset, "--data", corpus, "--out", run, "--phase2.k", 9)
    refused(
        changed,
        f"sjepa: {run} is a run with other settings:\n"
        "  phase2.k was 12, now 9\n"
        "To continue the run as it is, leave out --preset and these options.\n"
        f"To train with these settings, choose another --out, with --branch-from {run} to share its first phase.\n",
    )
    changes = ("--phase2.k", 9, "--seed", 1, "--phase1.lr", 1, "--phase2.lr", 1, "--phase1.k", 9, "--mask.ratio", 0.1)
    other = sjepa("pretrain", "--preset", preset, "--data", corpus, "--out", run, *changes, "--train.clip", 5)
    refused(other, "  and 2 more\nTo continue the run as it is, leave out --preset and these options.\n")
    assert other.stderr.count(", now ") == 5
    assert "--branch-from" not in other.stderr  # its first phase differs
    soundfile.write(tmp_path / "b.wav", babble(2.0, 5), 16_000)
    (tmp_path / "other").mkdir()
    soundfile.write(tmp_path / "other" / "b.wav", babble(2.0, 5), 16_000)
    refused(sjepa("pretrain", "--preset", preset, "--data", tmp_path / "other", "--out", run), "other audio")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    refused(sjepa("pretrain", "--preset", preset, "--data", corpus, "--out", tmp_path / "full"), "is not a run")
    assert (run / "metrics.jsonl").read_bytes() == before
    assert (tmp_path / "full" / "diary.txt").read_text() == "mine"


def test_a_run_that_stops_after_a_phase_names_what_remains(tmp_path: Path, corpus: Path, preset: Path) -> None:
    run = tmp_path / "run"
    first = sjepa("pretrain", "--preset", preset, "--data", corpus, "--out", run, "--stop-after-phase", 1)
    assert first.returncode == 0, first.stderr
    assert f"Phase 2 remains: sjepa pretrain --out {run} continues\n" in first.stdout
    second = sjepa("pretrain", "--out", run)
    assert second.returncode == 0, second.stderr
    assert "remains" not in second.stdout
    assert "remains" not in sjepa("pretrain", "--out", run, "--stop-after-phase", 1).stdout


def test_the_directory_alone_is_enough_to_continue_past_a_damaged_checkpoint(
    tmp_path: Path, corpus: Path, micro: Callable[..., Config]
) -> None:
    run = tmp_path / "run"
    assert pretrain(micro(), corpus, run, show=False)
    whole = (run / "encoder" / "model.safetensors").read_bytes()
    newest = RunFolder(run).checkpoint(12)
    (newest / "model.safetensors").write_bytes(b"gone")
    done = sjepa("pretrain", "--out", run)
    assert done.returncode == 0, done.stderr
    assert "step-00000012 is damaged" in done.stdout
    assert "Continuing" in done.stdout
    assert (run / "encoder" / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "preprocessor_config.json", ""])
def test_a_damaged_encoder_of_a_complete_run_is_written_again(name: str, tmp_path: Path, finished_run: Path) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    whole = {path.name: path.read_bytes() for path in (run / "encoder").iterdir()}
    if name:
        os.truncate(run / "encoder" / name, len(whole[name]) // 2)
        failed = sjepa("export", run, "--to", "hf", tmp_path / "exported")
        refused(failed, f"; `sjepa pretrain --out {run}` writes it again\n")
    else:
        shutil.rmtree(run / "encoder")
    done = sjepa("pretrain", "--out", run)
    assert done.returncode == 0, done.stderr
    assert f"{run / 'encoder'} is missing or damaged: writing it again from the checkpoint of step 12" in done.stdout
    assert {path.name: path.read_bytes() for path in (run / "encoder").iterdir()} == whole
    assert "writing it again" not in sjepa("pretrain", "--out", run).stdout


@pytest.mark.parametrize("call", [["bench", "step"], ["report", "run"], ["table", "runs"]])
def test_a_folder_in_place_of_a_file_is_refused_before_the_work(call: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder: give a file"):
        cli.dispatch([*call, "--out", str(tmp_path)])


@pytest.mark.parametrize(
    "call",
    [
        ["probe", "--encoder", "run", "--data", "speech"],
        ["superb", "pr", "--encoder", "run", "--data", "speech"],
        ["units", "--encoder", "run", "--data", "speech"],
        ["shard", "index", "--out", "shards"],
        ["analyze", "entropy", "run"],
        ["pretrain", "--preset", "tiny", "--data", "speech", "--out", "run"],
    ],
)
def test_a_seed_out_of_bounds_is_refused_before_the_work(call: list[str]) -> None:
    for seed, given in (("-1", ["--seed", "-1"]), ("-1", ["--seed=-1"]), (str(2**63), ["--seed", str(2**63)])):
        with pytest.raises(UserError, match=re.escape(f"{seed}: {SEED.words}")):
            cli.dispatch([*call, *given])


def test_a_demo_with_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(to_toml(replace(load_preset("tiny"), seed=5)))
    with pytest.raises(UserError, match="holds a demo with other settings: remove it, or choose another --out"):
        cli.dispatch(["demo", "--out", str(tmp_path)])
    assert not (tmp_path / "corpus").exists()


def test_a_demo_is_not_written_into_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sjepa.demo.synthesise_corpus", lambda folder: folder)
    monkeypatch.setattr("sjepa.demo.pretrain", lambda *_: False)
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and is not a demo: choose another --out"):
        cli.dispatch(["demo", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_a_demo_that_was_stopped_ends_like_a_training_that_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sjepa.demo.synthesise_corpus", lambda folder: folder)
    monkeypatch.setattr("sjepa.demo.pretrain", lambda *_: False)
    with pytest.raises(SystemExit) as stopped:
        cli.dispatch(["demo", "--out", str(tmp_path)])
    assert stopped.value.code == 130


def test_the_time_of_a_demo_includes_the_training_of_earlier_starts() -> None:
    from sjepa.demo import describe_duration

    lines = [{"event": "train", "step": step, "speed": {"seconds": 60.0}} for step in (1, 2, 3)]
    earlier = seconds_trained([*lines, {"event": "train", "step": 4}, {"event": "stopped", "step": 4}])
    assert describe_duration(90, earlier) == "4.5 minutes, including 3.0 minutes in earlier starts"
    assert describe_duration(90, 0.0) == "1.5 minutes"
